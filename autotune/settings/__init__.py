"""What may be set: the catalogue, what the installed build says of it, and the search space."""

from autotune.settings.atlas import (
    Atlas, AtlasRow, AtlasVerdict, ModelKind, atlas_folder, atlas_text, load_atlas, load_kinds, newest_not_after,
    place_of, read_atlas, read_rows,
)  # fmt: skip
from autotune.settings.catalog import (
    Catalog, NEVER_SEARCHED, Recipe, Setting, Stage, Symptom, Tier, find_recipe, load_catalog, load_recipes,
    load_symptoms, read_data, search_symptoms, select_settings,
)  # fmt: skip
from autotune.settings.check import (
    Migration, SettingCheck, SettingVerdict, check_given, check_settings, for_build, format_check, migrate_text,
    named_sets, read_script, would_start,
)  # fmt: skip
from autotune.settings.doctor import (
    diagnose,
    format_diagnosis,
    gpu_findings,
)
from autotune.settings.known import (
    KnownSettings,
    format_setting,
)
from autotune.settings.probe import (
    FlagInfo,
    JaxOption,
    ProbeReport,
    probe_build,
    probe_named,
)
from autotune.settings.space import (
    Parameter,
    SearchSpace,
    build_space,
    format_condition,
    format_domain,
    space_of_all,
)
