"""Programs that run in processes of their own, and what they share with the driver: standard library and jax."""

from autotune.child.guard import GUARD_PROGRAM
from autotune.child.packages import PACKAGES_PROGRAM, installed_versions
from autotune.child.read_rules import PRESETS, StepReader
