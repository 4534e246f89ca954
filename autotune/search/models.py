"""The models fitted to the trials of a space: what sets take, whether they run and fit."""

from __future__ import annotations

import math
from typing import NamedTuple

from autotune.search.additive import AdditiveModel
from autotune.search.failures import FailureModel
from autotune.search.memory import MemoryModel
from autotune.search.space import CodedSpace, Codes, Floats, Values


class Models(NamedTuple):
    """Models of the same trials."""

    effects: AdditiveModel
    failures: FailureModel
    memory: MemoryModel
    coded: CodedSpace

    def log_chances(self, codes: Codes) -> Floats:
        """Log of the probability that each set runs and fits into memory."""
        return self.failures.log_survivals(codes) + self.memory.log_chances(codes)

    def fits(self, codes: Codes) -> bool:
        """Returns whether a set is more likely than not to fit into memory."""
        return float(self.memory.log_chances(codes[None])[0]) >= math.log(0.5)

    def may_fit(self, values: Values) -> bool:
        """Returns whether a set fits, or has values that are not in the space."""
        codes = self.coded.codes(values)
        return codes is None or self.fits(codes)
