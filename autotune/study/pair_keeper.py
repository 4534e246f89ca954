"""Keeps the raw pairs of blocks that lanes tell of, each measurement's in its own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.model import Pair, WorkPerStep, log_ratio
from autotune.rundir import Store


@dataclass(slots=True)
class PairKeeper:
    """Keeps raw pairs, of one measurement after the other."""

    store: Store
    writers: dict[Path, tuple[Callable[[Pair], None], list[float]]] = field(default_factory=dict)

    def keep(self, folder: Path, pair: Pair, work: WorkPerStep | None) -> list[float]:
        """Keeps a pair; gives the log ratios of its measurement so far."""
        if pair.index == 0:
            self.writers[folder] = (self.store.pair_writer(folder), [])
        write, ratios = self.writers[folder]
        write(pair)
        ratios.append(log_ratio(pair, work))
        return ratios
