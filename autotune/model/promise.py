"""What the proofs of a study can find on its machine, and how long they take: told before the search begins."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autotune.model.measurement import Record
from autotune.model.numbers import AtLeastOne, Elapsed

Share = Annotated[float, Field(ge=0, lt=1)]


class Need(Record):
    """What it takes to prove a gain 9 times in 10.

    Attributes:
        gain: As a share of the default's step time.
        pairs: The cap of fresh pairs of processes of each proof; None if that is above `Promise.highest`.
        proof_s: Seconds of all proofs of a study on one lane, within which 97 of 100 are through.
    """

    gain: Share
    pairs: AtLeastOne | None = None
    proof_s: Elapsed | None = None


class Promise(Record):
    """What can be proven, from a cautious estimate of what processes differ by.

    Attributes:
        pair_sd: Standard deviation of the log ratio from one fresh pair of processes to the next, cautiously.
        pairs: Pairs of blocks that each of them runs.
        pair_s: Seconds of one of them.
        most: The study's own cap of pairs of processes in each proof.
        smallest: The smallest gain that is proven 9 times in 10 within that cap; None if there is none below 50 %.
        proof_s: Seconds of all proofs of a study with that gain on one lane, within which 97 of 100 are through.
        needs: What other gains would need.
        highest: The largest cap that was considered for those.
    """

    pair_sd: Annotated[float, Field(ge=0)]
    pairs: AtLeastOne
    pair_s: Elapsed
    most: AtLeastOne
    smallest: Share | None = None
    proof_s: Elapsed | None = None
    needs: tuple[Need, ...] = ()
    highest: AtLeastOne
