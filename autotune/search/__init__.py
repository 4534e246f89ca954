"""Who proposes the next set, and what trials taught: a sparse model of effects and of failures."""

from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.search.coded import Flag
from autotune.search.sampler import SD_KEY, DUPLICATE_KEY, AdditiveFlagSampler
from autotune.search.taught import Change, Taught, as_ratio
