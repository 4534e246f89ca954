"""What was found: winners, exports, reports, comparisons, and what notebooks see."""

from autotune.results.api import Study, compare, load
from autotune.results.comparison import compare_stores
from autotune.results.export import USE, ExportFormat, is_unchanged, render_export
from autotune.results.library import LibraryQuery, add_to_library, best_known, describe_entry, library_entries
from autotune.results.report import render_html, render_markdown
from autotune.results.t4 import read_t4, render_t4
from autotune.results.tables import study_tables
from autotune.results.winner import Difference, Winner, differences, read_winner, this_machine
from autotune.results.words import (
    conclusion_style, describe_begin, describe_energy, describe_finalist, describe_floor, describe_screen,
    describe_screen_record, describe_soak, describe_trial, format_estimate, held_lines, predicted_lines,
    screen_lines, shorten,
)  # fmt: skip
