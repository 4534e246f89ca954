"""Compiling before measuring: what a flag set does to a program, for GPUs that need not be here."""

from autotune.compiler.atlas_builder import Plan, build_atlas, planned_cells
from autotune.compiler.explain import explain_set, explanation
from autotune.compiler.predict import Prediction, predict_set
from autotune.compiler.screen import (
    Effect,
    Facts,
    Screener,
    ScreenReport,
    SettingReport,
    chains,
    cluster_that_ran,
    domains,
    facts_of,
    narrowed,
    open_screener,
)
from autotune.compiler.targets import (
    Target,
    Topology,
    compiler_problem,
    compiler_versions,
    load_target,
    parse_topology,
    target_here,
    target_names,
)
