"""The budget of a study: the time left, the time reserved for proofs, and the timetable.

Proofs are reserved first, and nothing begins that the budget cannot finish with all that must
follow. A proof that ends for lack of time errs no more often than planned, for that depends on the
clock alone; a larger budget resumes it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from autotune.measure.durations import ABLATIONS, NO_TIME, Durations, durations_of, proofs_s
from autotune.model.records import (
    AB,
    CONFIRM,
    ISOLATED,
    AaRecord,
    ConclusionRecord,
    ConfirmRun,
    Outcome,
    TrialResult,
)
from autotune.model.spec import FEWEST_TRIALS
from autotune.model.units import format_seconds
from autotune.rundir.store import Store
from autotune.stats.proof import FIRST_LOOK, ISOLATED_PAIRS, LEAST_PAIRS

BUDGET_SHARE_FOR_PROOF = 0.5  # largest share of time that is kept for more than the least proof
GRACE = 0.05  # share by which the last proof and what follows it may exceed the budget
TRIAL_SHARE = 0.25  # largest share of the search's remaining time that one trial may take
LIMITED = (CONFIRM, ISOLATED, AB)  # stages of proofs that the budget may end


@dataclass(frozen=True)
class TimeLeft:
    """The time budget of a study at one moment, and its split; without one there is always time."""

    records: Store
    elapsed_s: float
    lane_count: int  # at least one: lanes may be in a queue

    @property
    def budget_s(self) -> float:
        """The study's time budget, seconds; infinite without one."""
        budget_s = self.records.spec.search.time_budget
        return math.inf if budget_s is None else budget_s

    @property
    def has_budget(self) -> bool:
        """Whether there is a budget, and the durations of the study's pieces of work are known."""
        return self.takes != NO_TIME

    @functools.cached_property
    def takes(self) -> Durations:
        """Durations of this study's pieces of work; `NO_TIME` if unknown, or without a budget."""
        aa_runs = self.records.of(AaRecord)
        if not aa_runs or self.budget_s == math.inf:
            return NO_TIME
        return durations_of(self.records.spec, aa_runs[0], self.records.of(ConfirmRun))

    def is_used_up(self, unit_s: float, kept_s: float = 0.0, *, is_last: bool = False) -> bool:
        """Whether `unit_s` and `kept_s` do not fit; the last proof may exceed it by `GRACE`."""
        limit_s = (1.0 + GRACE * is_last) * self.budget_s
        return self.elapsed_s + unit_s + kept_s >= limit_s

    def pairs_for(self, kept_s: float, *, starts: float, share: float) -> int | None:
        """Returns the most pairs of blocks in a share of the time left; None for no limit."""
        takes = self.takes
        if not takes.block_pair_s:
            return None
        free_s = self.budget_s - self.elapsed_s - kept_s
        return max(1, int((share * free_s - starts * takes.start_s) / takes.block_pair_s))

    @property
    def _least_proof_s(self) -> float:
        """Seconds of the fewest pairs of processes with which a set can be proven."""
        pairs = min(LEAST_PAIRS, max(FIRST_LOOK, self.records.spec.confirm.processes))
        return pairs * self.takes.pair_s / self.lane_count

    def kept_after(self, stage: str) -> float:
        """Returns the least seconds of what follows a piece of work of a stage."""
        takes = self.takes
        after_s = takes.soak_s
        if stage != ISOLATED:
            after_s += takes.isolated_s / self.lane_count
        if stage not in LIMITED:
            after_s += self._least_proof_s
        return after_s

    def allows_pair(self, stage: str, *, is_needed: bool) -> bool:
        """Returns whether one more pair of processes of a proof fits with all that must follow.

        If the rest cannot fit, and no other set has passed (`is_needed`), finalists get the time.
        """
        if stage not in LIMITED:
            return True
        pair_s = self.takes.pair_s
        if stage == ISOLATED:
            pair_s = self.takes.isolated_s / ISOLATED_PAIRS
        if not self.is_used_up(pair_s, self.kept_after(stage), is_last=True):
            return True
        return stage != ISOLATED and is_needed and not self.is_used_up(pair_s)

    def allows_proof(self) -> bool:
        """Returns whether the proof of one more set fits with all that must follow."""
        return not self.is_used_up(self._least_proof_s, self.kept_after(CONFIRM), is_last=True)

    @property
    def used_s(self) -> float:
        """Seconds of the study at the end of its first A/A run."""
        return self.records.of(AaRecord)[0].at_s

    @property
    def least_s(self) -> float:
        """Seconds of the least proof of one set, from finalist to soak."""
        return self.kept_after("search")

    @property
    def reserved_s(self) -> float:
        """Seconds that are reserved for proofs."""
        spec = self.records.spec
        takes = self.takes
        proofs_wall_s = proofs_s(spec, takes) / self.lane_count
        wanted_s = proofs_wall_s + takes.soak_s
        if spec.confirm.minimise:
            wanted_s += ABLATIONS * takes.ablation_s
        limit_s = BUDGET_SHARE_FOR_PROOF * (self.budget_s - self.used_s)
        return max(self.least_s, min(wanted_s, limit_s))

    @property
    def still_kept_s(self) -> float:
        """Seconds that are reserved for proofs, less what they took if a winner is proven."""
        concluded = self.records.last(ConclusionRecord)
        if concluded is None or concluded.outcome is not Outcome.WINNER:
            return self.reserved_s
        took_s = searched_s = 0.0
        for record in self.records.records():
            if isinstance(record, ConclusionRecord):
                took_s += record.at_s - searched_s
            if isinstance(record, ConclusionRecord | TrialResult):
                searched_s = record.at_s
        return max(0.0, self.reserved_s - took_s)

    @property
    def trials(self) -> int:
        """Requested trials that fit beside `reserved_s`."""
        search_s = max(0.0, self.budget_s - self.used_s - self.reserved_s)
        fitting = int(search_s / self.takes.trial_s) * self.lane_count
        return min(self.records.spec.search.trials, fitting)

    @property
    def fewest_trials(self) -> int:
        """Trials beside one proof in a budget that would do."""
        return min(FEWEST_TRIALS, self.records.spec.search.trials)

    @property
    def needed_s(self) -> float:
        """A budget for a few trials and one proof, seconds."""
        return self.used_s + self.fewest_trials * self.takes.trial_s + self.least_s

    @property
    def is_enough(self) -> bool:
        """Whether there is time for one trial and its proof in the whole budget."""
        return self.used_s + self.takes.trial_s + self.least_s <= self.budget_s


def format_timetable(time: TimeLeft) -> str:
    """Formats the split of a budget, or what a proof would need."""
    budget = f"the time budget of {format_seconds(time.budget_s)}"
    each = format_seconds(time.takes.trial_s)
    used = format_seconds(time.used_s)
    if not time.is_enough:
        return (
            f"{budget} is too small for a proof here, so trials get it and the best set stays "
            f"unproven: {time.fewest_trials} trials ({each} each) and the least proof "
            f"({format_seconds(time.least_s)}) after the A/A run ({used}) need "
            f"{format_seconds(time.needed_s)}"
        )
    search_s = time.budget_s - time.used_s - time.reserved_s
    return (
        f"{budget} is split into A/A run {used}, screen and search {format_seconds(search_s)}, "
        f"proofs {format_seconds(time.reserved_s)}: time for up to {time.trials} of "
        f"{time.records.spec.search.trials} trials (at least {each} each)"
    )
