"""What may be set: the catalogue, what the installed build says of it, and the search space."""

from autotune.settings.atlas import (
    Atlas,
    AtlasRow,
    AtlasVerdict,
    ModelKind,
    atlas_folder,
    atlas_text,
    load_atlas,
    load_kinds,
    read_atlas,
    read_rows,
)
from autotune.settings.build import ProbeReport
from autotune.settings.catalog import NEVER_SEARCHED, Catalog, Setting, Stage, Tier, load_catalog, read_data
from autotune.settings.check import (
    SettingCheck, SettingVerdict, check_settings, for_build, would_start,
)  # fmt: skip
from autotune.settings.doctor import diagnose, gpu_findings
from autotune.settings.known import KnownSettings, is_default
from autotune.settings.lookup import (
    check_given, help_of_build, named_sets, probe_named, read_script, replace_script, select_settings,
)  # fmt: skip
from autotune.settings.migrate import Migration, migrate_text
from autotune.settings.parameters import Parameter, SearchSpace, describe_condition, describe_domain
from autotune.settings.places import Places, newest_not_after, parse_places, place_of
from autotune.settings.probe import probe_build
from autotune.settings.recipes import find_recipe, load_recipes, load_symptoms, search_symptoms
from autotune.settings.space import build_space, space_of_all
from autotune.settings.words import describe_check, describe_diagnosis, describe_setting
