"""Programs in processes of their own, and what the driver shares with them: standard library and jax only."""

from autotune.child.channel import Channel, pack
from autotune.child.fingerprint import strip_hlo
from autotune.child.guard import GUARD_PROGRAM
from autotune.child.gpus import NvmlDevice, VISIBLE, ask, first_of, load_nvml, named_devices, visible_devices
from autotune.child.output import Follow, find, lines_of
from autotune.child.packages import CUDA_PLUGINS, PACKAGES_PROGRAM, installed_versions, versions_in, workloads_root
from autotune.child.read_output import last_exception
from autotune.child.steps import PRESETS
from autotune.child.steps import StepReader
from autotune.child.steps import plain
from autotune.child.recognise import Recognised, recognise
