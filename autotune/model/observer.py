"""Who is told what happens in a study: the command line shows it, tests record it."""

from __future__ import annotations

from typing import Protocol

from autotune.model.records import AblationResult, ConfirmRun, FinalistResult, FloorResult
from autotune.model.trial import TrialConfig, TrialResult


class Watcher(Protocol):
    """Told what happens while one set is measured; the live view."""

    def phase(self, what: str, lane: str = "") -> None:
        """A worker reached a phase of its start; on which lane, if there are several."""

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """One more pair is done; log ratios so far."""

    def proof(self, run: ConfirmRun, asked: int) -> None:
        """One more fresh pair of processes is done, of so many."""


class Callbacks(Watcher, Protocol):
    """Told what happens in a study; the CLI shows it, tests record it."""

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""

    def floor(self, result: FloorResult) -> None:
        """The noise floor is known."""

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """A set is about to be tried."""

    def trial_ends(self, result: TrialResult) -> None:
        """A set has its result."""

    def finalist(self, result: FinalistResult) -> None:
        """A finalist has its verdict."""

    def ablation(self, result: AblationResult) -> None:
        """One setting was left out."""

    def note(self, text: str) -> None:
        """Something the user should know."""
