"""Compiling before measuring: what a flag set does to a program, for GPUs that need not be here."""

from autotune.compiler.canary import find_canary
from autotune.compiler.candidate import explain_set, predict_set
from autotune.compiler.choices import look_under
from autotune.compiler.company import TimeUp, look_in_company
from autotune.compiler.explain import as_page, as_text
from autotune.compiler.open import (
    Facts,
    chains,
    cluster_that_ran,
    domains,
    facts_of,
    narrowed,
    open_screener,
    spread,
    with_options,
)
from autotune.compiler.plugin import compiler_problem, compiler_versions
from autotune.compiler.predict import Prediction, predict_step
from autotune.compiler.program import CompiledProgram, changes
from autotune.compiler.targets import Target, Topology, load_target, parse_topology, target_here, target_names
from autotune.compiler.reports import Effect, ScreenReport, SettingReport
from autotune.compiler.verdicts import Screener
