"""What was found: winners, exports, reports, comparisons, and what notebooks see."""

import importlib
from typing import TYPE_CHECKING, Any

from autotune.results.artefacts import (
    artefact_differences, artefact_folder, keep_in_run, loading_kernels, settings_in_force,
)  # fmt: skip
from autotune.results.conditions import Difference, differences, this_machine
from autotune.results.export import USE, ExportFormat, is_unchanged, render_export
from autotune.results.library import (
    Entry, LibraryQuery, Match, add_to_library, best_known, describe_entry, library_entries, nearest_known,
)  # fmt: skip
from autotune.results.recompute import doubts
from autotune.results.carried import read_winner
from autotune.results.proof_words import describe_finalist
from autotune.results.soak_words import describe_soak
from autotune.results.losses import loss_addition, require_loss
from autotune.results.winner import RecordCheck, Status, Winner, check_records, origin_line, origin_of_run
from autotune.results.words import (
    conclusion_style, describe_begin, describe_energy, describe_floor,
    describe_trial, format_estimate, shorten, time_of,
)  # fmt: skip

if TYPE_CHECKING:
    from autotune.results.atlas_views import AtlasFinding, atlas, atlas_findings, render_atlas
    from autotune.results.api import Study, compare, load
    from autotune.results.comparison import compare_stores
    from autotune.results.report import render_html, render_markdown
    from autotune.results.screen_words import (
        describe_screen, describe_screen_record, predicted_lines, screen_lines,
    )  # fmt: skip
    from autotune.results.tables import study_tables
    from autotune.results.taught import taught_lines

# Fetched when first used: they bring pandas, Jinja, Rich or the compiler's SciPy, which a study's driver never needs.
_LATER = {
    "atlas_views": ("AtlasFinding", "atlas", "atlas_findings", "render_atlas"),
    "api": ("Study", "compare", "load"),
    "comparison": ("compare_stores",),
    "report": ("render_html", "render_markdown"),
    "screen_words": (
        "describe_screen",
        "describe_screen_record",
        "predicted_lines",
        "screen_lines",
    ),
    "tables": ("study_tables",),
    "taught": ("taught_lines",),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"autotune.results.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
