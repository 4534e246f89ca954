"""How proofs read: what they say of a set in one word, and in a sentence."""

from __future__ import annotations

from autotune.model import REESTIMATES, FinalistResult, format_interval
from autotune.results.words import describe_failure, format_estimate
from autotune.stats import Estimate, Outlook, Verdict

STAGE_WORDS = {
    "confirm": "fresh processes",
    "pgle": "with its profile, against without",
    "final": "final proof",
    "full": "final proof, whole set",
    "gain": "its gain, measured once more",
    "alone": "each arm alone",
    "recheck": "recheck",
}
"""Stages of `FinalistResult`, as shown to users."""


def describe_finalist(result: FinalistResult) -> str:
    """A finalist's verdict in words."""
    if result.failure is not None:
        return describe_failure(result.failure, "in a fresh process")
    if result.estimate is None or result.corrected is None:
        return "no number"
    return (
        f"{format_estimate(result.estimate)} over {result.process_count} fresh pairs of processes"
        f"{_corrected(result.corrected)}: {word_of(result)}{_why(result)}"
    )


def word_of(result: FinalistResult) -> str:
    """One word for what a proof, or what came after it, says of a set."""
    if result.failure is not None:
        return "failed"
    if result.veto is not None:
        return "no winner"
    if result.stage in REESTIMATES:
        return "measured" if result.stage == "gain" else "compared"
    if result.verdict is Verdict.UNRESOLVED and result.goes_on:
        return Outlook.PROMISING
    return result.verdict


def _corrected(estimate: Estimate | None) -> str:
    known = estimate is not None and estimate.low > 0.0
    return f" (corrected {format_interval(estimate.low, estimate.high)})" if estimate is not None and known else ""


def _why(result: FinalistResult) -> str:
    """What there is to say beside the word: what speaks against the set, or why no more was measured."""
    if result.veto is not None:
        return f": {result.veto}"
    if result.stage not in REESTIMATES and result.goes_on:  # the reason is of the hurdle, the word of the claim
        return ", and goes on" if result.verdict is Verdict.UNRESOLVED else ""
    told = result.stage in REESTIMATES or result.verdict is Verdict.UNRESOLVED
    return f", {result.reason}" if told and result.reason else ""
