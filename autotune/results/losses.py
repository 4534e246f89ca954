"""What is said of a set's loss: how it was compared with the default's, or that nobody compared it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.model import LOSS_NOT_CHECKED, AnyRecord, AutotuneError, ConfirmRun, LossBasis, LossCheck, SoakRecord

if TYPE_CHECKING:
    from autotune.results.winner import Winner


def loss_of(evidence: Sequence[AnyRecord]) -> LossCheck | None:
    """The last word on the loss of a proven set; what only its first steps say of another batch is none."""
    soaked = [r.loss for r in evidence if isinstance(r, SoakRecord) and r.loss is not None]
    proofs = [r.loss for r in evidence if isinstance(r, ConfirmRun) and r.loss is not None]
    if soaked or not proofs:
        return soaked[-1] if soaked else None
    found = next((check for check in proofs if not check.is_ok), proofs[-1])
    if found.is_final or not found.is_ok:
        return found
    return found.model_copy(update={"is_ok": None, "words": f"inconclusive: it was never soaked; {found.words}"})


def loss_addition(evidence: Sequence[AnyRecord]) -> str:
    """What a sentence on a proven set says of its loss: that it was not checked, or what a soak had to judge."""
    found = loss_of(evidence)
    if found is None or found.basis in (LossBasis.STEPS, LossBasis.ROUNDING):
        return f"; {LOSS_NOT_CHECKED}" if found is not None and found.is_ok is None else ""
    is_soaked = any(isinstance(r, SoakRecord) and r.loss is not None for r in evidence)
    return f"; {found.words}" if is_soaked else ""


def require_loss(winner: Winner) -> None:
    """Refuses a winner of which nobody has seen that it trains as the default does.

    Raises:
        AutotuneError: If its loss was not compared.
    """
    if winner.loss is None or not winner.loss.is_ok:
        said = winner.loss.words if winner.loss is not None else f"{LOSS_NOT_CHECKED}: its records do not say how"
        raise AutotuneError(
            f"--require-loss wants a winner whose loss was compared with the default's but of {winner.settings}: "
            f"{said}; have the program tell its loss and use a new run directory, or leave --require-loss out"
        )
