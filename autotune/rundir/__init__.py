"""The run directory: what was recorded, and who may write it."""

from autotune.rundir.files import append_synced, cut_torn_line, write_atomically
from autotune.rundir.folders import Folders
from autotune.rundir.mirror import NUMBER_KEY, Mirror
from autotune.rundir.nodes import node_effects, refuse_strangers, refuse_upgraded
from autotune.rundir.session import driver_session
from autotune.rundir.store import Store, is_held
