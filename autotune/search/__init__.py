"""The search: an Optuna sampler with a sparse additive model of effects, and a model of failures."""

from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.search.effects import Change, Effects, as_ratio
from autotune.search.sampler import SD_KEY, DUPLICATE_KEY, AdditiveFlagSampler
from autotune.search.space import Codes, Flag
