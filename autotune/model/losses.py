"""How a candidate's loss was held to the reference's, and what came out."""

from __future__ import annotations

from enum import StrEnum

from autotune.model.measurement import Record
from autotune.model.numbers import Amount, Change, Count

LOSS_NOT_CHECKED = "loss not checked"
"""Stands wherever a set is spoken well of whose program tells no loss."""


class LossBasis(StrEnum):
    """By what a candidate's loss was compared with the reference's."""

    STEPS = "steps"
    ROUNDING = "rounding"
    WORK = "work"
    DTYPE = "dtype"


class LossCheck(Record):
    """Whether a candidate trains as the reference does.

    Attributes:
        basis: ``steps``: flags alone, step by step. ``rounding``: other options, the same work, step by step.
            ``work``: another batch, at equal work. ``dtype``: another arithmetic, over a long run.
        is_ok: None where it cannot be told: that is inconclusive, and no proof.
        steps: How many steps were compared, one by one.
        difference: Relative difference of the candidate's loss, where it is largest; above 0 it is higher.
        tolerance: What it is held to.
        words: What was compared and what came out, for people.
        is_final: Whether nothing is left to be compared: a long run says more than the first steps.
    """

    basis: LossBasis
    is_ok: bool | None = None
    difference: Change | None = None
    tolerance: Amount | None = None
    steps: Count | None = None
    words: str
    is_final: bool = True

    @property
    def is_silent(self) -> bool:
        """Whether flags alone differ and no loss was told: nothing speaks against the set, and nothing for it."""
        return self.is_ok is None and self.basis is LossBasis.STEPS
