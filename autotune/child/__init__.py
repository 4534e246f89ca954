"""Programs in processes of their own, and what the driver shares with them: standard library and jax only."""

from autotune.child.bundled import workloads_root
from autotune.child.channel import Channel
from autotune.child.fingerprint import strip_hlo
from autotune.child.guard import GUARD_PROGRAM
from autotune.child.nvml import VISIBLE, NvmlDevice, ask, first_of, load_nvml, named_devices, visible_devices
from autotune.child.packages import CUDA_PLUGINS, PACKAGES_PROGRAM, installed_versions
from autotune.child.process_packages import versions_in
from autotune.child.profile import pack
from autotune.child.read_files import Follow, find, records_of
from autotune.child.read_output import last_exception
from autotune.child.read_presets import PRESETS
from autotune.child.read_rules import LONGEST_LINE, StepReader
from autotune.child.read_units import plain
from autotune.child.recognise import Recognised, recognise
