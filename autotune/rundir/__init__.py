"""The run directory: what was recorded, and who may write it."""

from autotune.rundir.artefacts import (
    ARTEFACTS,
    artefact_problems,
    artefacts_for,
    in_force,
    place_artefacts,
    read_artefacts,
)
from autotune.rundir.files import cannot_write, is_fault_of_disk, write_atomically
from autotune.rundir.fsck import RunCheck, check_run
from autotune.rundir.lock import is_held, read_stage, unlock
from autotune.rundir.nodes import node_effects, refuse_strangers, refuse_upgraded
from autotune.rundir.optuna_study import JOURNAL, NUMBER_KEY, OptunaStudy
from autotune.rundir.store import Folders, Store, driver_session
