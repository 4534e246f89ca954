"""The cells of the atlas: a kind of model on so many GPUs of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.compiler import Target, Topology, load_target
from autotune.model import SettingError, StudySpec, close_matches, parse_study
from autotune.settings import ModelKind, load_kinds

TARGETS = ("h100-sxm", "a100-sxm-80", "h200", "b200", "gb200")
"""GPUs of the atlas where none are named, in the order in which they are compiled for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A kind of model on so many GPUs of a kind, whatever the release."""

    kind: ModelKind
    target: Target
    gpus: int

    def __str__(self) -> str:
        return f"{self.kind.name} on {self.gpus} {self.target.name}"

    @property
    def topology(self) -> Topology:
        """Full machines of that GPU, or a part of one."""
        per_node = self.target.network.gpus_per_node if self.target.network else self.gpus
        if self.gpus <= per_node:
            return Topology(1, self.gpus)
        return Topology(self.gpus // per_node, per_node)

    @property
    def study(self) -> StudySpec:
        """A study of it that sets nothing."""
        topology = self.topology
        options = self.kind.options_for(self.gpus)
        device = {"platform": "cuda", "count": topology.device_count, "node_count": topology.nodes}
        return parse_study(
            {"name": "atlas", "workload": {"entry": self.kind.entry, "options": options}, "device": device}
        )


def planned_cells(kinds: Sequence[str] = (), targets: Sequence[str] = (), gpus: Sequence[int] = ()) -> list[Cell]:
    """The cells of some kinds, GPUs and counts, in the order in which they are compiled: the small ones first.

    Args:
        kinds: Kinds of models; empty for all.
        targets: GPUs; empty for `TARGETS`.
        gpus: Counts; empty for those of each kind.

    Raises:
        SettingError: If there is no such kind, or nothing is left of what was asked.
        StudyFileError: If there is no such GPU.
    """
    known = load_kinds()
    for name in kinds:
        if name not in known:
            raise SettingError(f"--kind must be one of {', '.join(known)} but got {name!r}{close_matches(name, known)}")
    picked = [known[n] for n in kinds or known]
    cells = [
        Cell(kind=kind, target=load_target(name), gpus=count)
        for count in sorted({n for k in picked for n in k.gpus})
        for name in targets or TARGETS
        for kind in picked
        if count in kind.gpus and (not gpus or count in gpus)
    ]
    if not cells:
        had = "; ".join(f"{k.name}: {', '.join(map(str, k.gpus))}" for k in picked)
        raise SettingError(
            f"--gpus must be a count that a kind is compiled for ({had}) but got {', '.join(map(str, gpus))}"
        )
    return cells
