"""The models that are fitted to the trials of one space: what sets take, whether they run, and
whether they fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.search.additive import AdditiveModel
from autotune.search.failures import FailureModel
from autotune.search.memory import MemoryModel
from autotune.search.space import Codes, Floats


@dataclass(frozen=True, slots=True)
class Models:
    """Models of the same trials."""

    effects: AdditiveModel
    failures: FailureModel
    memory: MemoryModel

    def log_chances(self, codes: Codes) -> Floats:
        """Log of the probability that each set runs and fits into memory, of sets of shape (sets,
        factors).
        """
        return self.failures.log_survivals(codes) + self.memory.log_chances(codes)

    def fits(self, codes: Codes) -> bool:
        """Returns whether a set is more likely than not to fit into memory."""
        return float(self.memory.log_chances(codes[None])[0]) >= math.log(0.5)
