"""The budget of a study: the time left, the time reserved for proofs, and the timetable.

Proofs are reserved first. The search ends when the next trial would need reserved time, and a proof runs its next pair
of processes only if all that must follow still fits: nothing begins that the budget cannot finish. A proof that ends
for lack of time errs no more often than planned, for that depends on the clock alone; a larger budget resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measure.durations import Durations, durations_of, minimising_s, proofs_s
from autotune.model.records import AB, CONFIRM, ISOLATED, AaRecord, ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.model.spec import FEWEST_TRIALS
from autotune.model.units import format_seconds
from autotune.rundir.store import Store
from autotune.stats.proof import FIRST_LOOK, ISOLATED_PAIRS, LEAST_PAIRS

BUDGET_SHARE_FOR_PROOF = 0.5
"""Largest share of the time after the A/A run that is reserved for more than the least proof."""

GRACE = 0.05
"""Share by which the last proof and what follows it may exceed the budget."""

TRIAL_SHARE = 0.25
"""Largest share of the search's remaining time that one trial may take."""

LIMITED = (CONFIRM, ISOLATED, AB)
"""Stages of proofs that the budget may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The split of a study's time, `budget_s` in all; its A/A run ended after `used_s`."""

    budget_s: float
    used_s: float
    least_s: float
    """For the least proof of one set, from finalist to soak."""
    reserved_s: float
    """For proofs."""
    trial_s: float
    """A trial that ends at its first look."""
    trials: int
    """Those that fit beside `reserved_s`, at most the requested ones."""
    fewest: int
    """Beside one proof, in the budget that would do."""

    @property
    def needed_s(self) -> float:
        """A budget for a few trials and one proof."""
        return self.used_s + self.fewest * self.trial_s + self.least_s

    @property
    def is_enough(self) -> bool:
        """Whether there is time for one trial and its proof; without it nothing is tried."""
        return self.used_s + self.trial_s + self.least_s <= self.budget_s


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """The time budget of a study at one moment.

    Attributes:
        records: Of all sessions; only read.
        elapsed_s: Seconds that the study has run, all sessions together.
        lane_count: Lanes that are there now.
    """

    records: Store
    elapsed_s: float
    lane_count: int

    @property
    def budget_s(self) -> float | None:
        """The study's time budget, seconds; None without one."""
        return self.records.spec.search.time_budget

    # ------------------------------------------------------------------ time left

    @property
    def has_budget(self) -> bool:
        """Whether there is a budget, and the durations of the study's pieces of work are known."""
        return self.takes is not None

    @property
    def takes(self) -> Durations | None:
        """Durations of this study's pieces of work; None if they are not known, or there is no budget."""
        aa_runs = self.records.of(AaRecord) if self.budget_s is not None else []
        return durations_of(self.records.spec, aa_runs[0], self.records.of(ConfirmRun)) if aa_runs else None

    def is_used_up(self, unit_s: float = 0.0, kept_s: float = 0.0, *, is_last: bool = False) -> bool:
        """Whether `unit_s` does not fit in the budget beside `kept_s`; the last proof may exceed it by `GRACE`."""
        more = 1.0 + GRACE if is_last else 1.0
        return self.budget_s is not None and self.elapsed_s + unit_s + kept_s >= more * self.budget_s

    def _side_by_side(self, seconds: float) -> float:
        """Returns the wall time of work that all lanes share."""
        return seconds / max(1, self.lane_count)

    def pairs_for(self, kept_s: float, *, starts: float, share: float) -> int | None:
        """Returns the most pairs of blocks of a task that starts `starts` processes; None for no limit.

        The task may take `share` of the time left beside `kept_s`.
        """
        takes = self.takes
        if takes is None or self.budget_s is None or not takes.block_pair_s:
            return None
        rest_s = self.budget_s - self.elapsed_s - kept_s
        return max(1, int((share * rest_s - starts * takes.start_s) / takes.block_pair_s))

    # ------------------------------------------------------------------ time for what must follow

    @property
    def _least_pairs(self) -> int:
        """Fewest pairs of processes with which a set can be proven."""
        return min(LEAST_PAIRS, max(FIRST_LOOK, self.records.spec.confirm.processes))

    def kept_after(self, stage: str) -> float:
        """Returns the least seconds of what follows a piece of work of a stage."""
        takes = self.takes
        if takes is None:
            return 0.0
        after_s = 0.0 if stage == ISOLATED else self._side_by_side(takes.isolated_s)
        if stage not in LIMITED:
            after_s += self._side_by_side(self._least_pairs * takes.pair_s)
        return after_s + takes.soak_s

    def allows_pair(self, stage: str, *, is_needed: bool) -> bool:
        """Whether one more pair of processes of a proof fits with all that must follow.

        If the rest cannot fit any more, and no other set has passed (`is_needed`), finalists get the time: a larger
        budget resumes there.
        """
        takes = self.takes
        if takes is None or stage not in LIMITED:
            return True
        pair_s = takes.isolated_s / ISOLATED_PAIRS if stage == ISOLATED else takes.pair_s
        if not self.is_used_up(pair_s, self.kept_after(stage), is_last=True):
            return True
        return stage != ISOLATED and is_needed and not self.is_used_up(pair_s)

    def allows_proof(self) -> bool:
        """Whether there is time for the proof of one more set, and for all that must follow."""
        takes = self.takes
        if takes is None:
            return True
        pairs_s = self._side_by_side(self._least_pairs * takes.pair_s)
        return not self.is_used_up(pairs_s, self.kept_after(CONFIRM), is_last=True)

    def allows_ablation(self) -> bool:
        """Whether leaving out a setting fits before the proof of the rest."""
        takes = self.takes
        return takes is None or not self.is_used_up(takes.ablation_s, self.kept_after("minimise"))

    def still_kept(self, table: Timetable) -> float:
        """Returns the seconds that a timetable reserves for proofs, less what they took if a winner is proven."""
        concluded = self.records.last(ConclusionRecord)
        if concluded is None or concluded.outcome is not Outcome.WINNER:
            return table.reserved_s
        took_s = searched_s = 0.0
        for record in self.records.records():
            if isinstance(record, ConclusionRecord):
                took_s += record.at_s - searched_s
            if isinstance(record, ConclusionRecord | TrialResult):
                searched_s = record.at_s
        return max(0.0, table.reserved_s - took_s)

    # ------------------------------------------------------------------ the split

    def timetable(self) -> Timetable | None:
        """Splits the budget, the same in every session; None without one, or before the A/A run."""
        takes, spec = self.takes, self.records.spec
        if takes is None or self.budget_s is None:
            return None
        aa_at_s = self.records.of(AaRecord)[0].at_s
        rest_s = self.budget_s - aa_at_s
        least_s = self.kept_after("search")
        wanted_s = self._side_by_side(proofs_s(spec, takes)) + takes.soak_s
        wanted_s += minimising_s(spec, takes)
        reserved_s = max(least_s, min(wanted_s, BUDGET_SHARE_FOR_PROOF * rest_s))
        search_s = max(0.0, rest_s - reserved_s)
        lanes = max(1, self.lane_count)
        return Timetable(
            budget_s=self.budget_s,
            used_s=aa_at_s,
            least_s=least_s,
            reserved_s=reserved_s,
            trial_s=takes.trial_s,
            trials=min(spec.search.trials, int(search_s / takes.trial_s) * lanes),
            fewest=min(FEWEST_TRIALS, spec.search.trials),
        )


def format_timetable(table: Timetable, *, asked: int) -> str:
    """Formats the split of the time, or what a proof would need; `asked` is the study's number of trials."""
    whole = f"the time budget of {format_seconds(table.budget_s)}"
    each = format_seconds(table.trial_s)
    if not table.is_enough:
        return (
            f"{whole} is too small for a proof here, so trials get it and the best set stays unproven: {table.fewest} "
            f"trials ({each} each) and the least proof ({format_seconds(table.least_s)}) after the A/A run "
            f"({format_seconds(table.used_s)}) need {format_seconds(table.needed_s)}"
        )
    search_s = table.budget_s - table.used_s - table.reserved_s
    return (
        f"{whole} is split into A/A run {format_seconds(table.used_s)}, screen and search "
        f"{format_seconds(search_s)}, proofs {format_seconds(table.reserved_s)}: "
        f"time for up to {table.trials} of {asked} trials (at least {each} each)"
    )
