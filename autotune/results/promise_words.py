"""What a study's proofs can find, in one sentence."""

from __future__ import annotations

from autotune.model import Need, Promise, format_seconds, format_share

HOPELESS = 0.05
"""Where only gains above this share can be proven, that is said as plainly as what can be."""


def describe_promise(promise: Promise) -> str:
    """What is proven 9 times in 10 on this machine, how long that takes, and what 1, 2 and 3 % would take."""
    needs = ", ".join(_need(n, is_first=i == 0, highest=promise.highest) for i, n in enumerate(promise.needs))
    cap = f"up to {promise.most} pairs of processes in each proof"
    if promise.smallest is None:
        return f"no gain below 50 % can be proven here with {cap}: processes differ too much; {needs}"
    takes = f"up to {_time(promise.proof_s)} of proofs"
    told = f"with {cap}, a gain of {format_share(promise.smallest)} is proven 9 times in 10 ({takes})"
    if promise.smallest > HOPELESS:
        told = f"gains below {format_share(promise.smallest)} cannot be proven here: {told}"
    return f"{told}; {needs}"


def _need(need: Need, *, is_first: bool, highest: int) -> str:
    gain = f"{need.gain * 100:g} %"
    verb = " would need up to" if is_first else ""
    if need.pairs is None:
        return f"{gain}{' would need' if is_first else ''} more than {highest} pairs"
    return f"{gain}{verb} {need.pairs}{' pairs' if is_first else ''} ({_time(need.proof_s)})"


def _time(seconds: float | None) -> str:
    """A time as well as it is known."""
    if seconds is None:
        return "-"
    rounded = seconds if seconds < 60 else 60 * round(seconds / 60)
    return format_seconds(rounded).removesuffix(" 0 s")
