"""What was found: winners, exports, reports, comparisons, and what notebooks see."""

import importlib
from typing import (
    Any,
    TYPE_CHECKING,
)
from autotune.results.export import (
    ExportFormat, USE, artefact_differences, artefact_folder, is_unchanged, keep_in_run, loading_kernels, read_winner,
    render_export, settings_in_force,
)  # fmt: skip
from autotune.results.library import (
    Entry,
    LibraryQuery,
    Match,
    add_to_library,
    best_known,
    format_match,
    library_entries,
    nearest_known,
)
from autotune.results.recompute import doubts
from autotune.results.winner import (
    Difference,
    RecordCheck,
    Status,
    Winner,
    check_records,
    differences,
    loss_addition,
    require_loss,
    this_machine,
)
from autotune.results.format import (
    format_begin, format_energy, format_estimate, format_finalist, format_floor, format_soak, format_trial, shorten,
    time_of,
)  # fmt: skip

if TYPE_CHECKING:
    from autotune.results.atlas_views import AtlasFinding, atlas, atlas_findings, render_atlas
    from autotune.results.api import Study, compare, load
    from autotune.results.comparison import compare_stores
    from autotune.results.effects import effect_lines, study_tables
    from autotune.results.report import render_html, render_markdown
    from autotune.results.screen_words import (
        describe_screen, describe_screen_record, predicted_lines, screen_lines,
    )  # fmt: skip

# Fetched when first used: they bring pandas, Jinja, Rich or the compiler's SciPy, which a study's driver never needs.
_LATER = {
    "atlas_views": ("AtlasFinding", "atlas", "atlas_findings", "render_atlas"),
    "api": ("Study", "compare", "load"),
    "comparison": ("compare_stores",),
    "effects": ("effect_lines", "study_tables"),
    "report": ("render_html", "render_markdown"),
    "screen_words": (
        "describe_screen",
        "describe_screen_record",
        "predicted_lines",
        "screen_lines",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"autotune.results.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
