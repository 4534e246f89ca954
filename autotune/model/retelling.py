"""Words of older records that mean something else now: kept for the digests that go over them, and said anew."""

from __future__ import annotations

import re

AS_RECORDED = {"as": "recorded"}
"""Context of a dump that keeps the words of older records: what a digest goes over."""

_OLD_WORDS = (
    (re.compile(r"^verdict reached: [a-z ]+$"), "its interval is narrow enough"),
    (re.compile(r"^surely not faster than (.+) by (.+) or more$"), r"surely no gain of \2 or more over \1"),
    (re.compile(r"^slower without it$"), "it seems to pay"),
    (re.compile(r"^not resolved, but the estimate is slower without it$"), "not settled, but it pays by its estimate"),
    (re.compile(r"^no slower without it$"), "no sign that it pays"),
)
"""What older records say of a measurement in two processes, in words of proofs, and how it is said now."""


def retold(reason: str) -> str:
    """A reason as it is said now: that of an older record may use words that belong to proofs."""
    for old, new in _OLD_WORDS:
        reason = old.sub(new, reason)
    return reason
