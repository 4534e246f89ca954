"""The power analysis of a study's proofs, in one sentence."""

from __future__ import annotations

from autotune.model import PowerAnalysis, format_seconds, format_share


def format_power(power: PowerAnalysis) -> str:
    """Formats the smallest gain that is proven 9 times in 10 on this machine, and how long that takes."""
    cap = f"up to {power.most} pairs of processes in each proof"
    if power.smallest is None or power.proof_s is None:
        return f"no gain below 50 % can be proven here with {cap}: processes differ too much"
    seconds = power.proof_s if power.proof_s < 60 else 60 * round(power.proof_s / 60)
    takes = f"up to {format_seconds(seconds).removesuffix(' 0 s')} of proofs"
    return f"with {cap}, a gain of {format_share(power.smallest)} is proven 9 times in 10 ({takes})"
