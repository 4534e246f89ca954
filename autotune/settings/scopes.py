"""What a study's program has, as far as that is certain: a setting is left out only for what is surely not there.

Certain are counts of devices and nodes, and how the study says that the program splits its work (`workload.mesh`). A
program of which nothing is said may have anything: then a screen or a measurement judges.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from autotune.model import StudySpec, WorkloadFacts
from autotune.settings.catalog import Scope, Setting

_SEVERAL = frozenset({Scope.MULTI_DEVICE})

GIVES: Mapping[str, frozenset[Scope]] = {
    "data": _SEVERAL,
    "fsdp": _SEVERAL | {Scope.SHARDED_MATMUL},
    "tensor": _SEVERAL | {Scope.SHARDED_MATMUL, Scope.COLLECTIVE_PERMUTE},
    "expert": _SEVERAL | {Scope.SHARDED_MATMUL, Scope.COLLECTIVE_PERMUTE},
    "context": _SEVERAL | {Scope.SHARDED_MATMUL, Scope.COLLECTIVE_PERMUTE},
    "pipeline": _SEVERAL | {Scope.SHARDED_MATMUL, Scope.COLLECTIVE_PERMUTE},
}
"""Each axis of `workload.mesh` to what a program has under it."""

_MISSING = {
    Scope.MULTI_DEVICE: "acts on several devices, the study has one",
    Scope.MULTI_NODE: "acts across nodes, the study has one",
    Scope.COLLECTIVE_PERMUTE: "acts on collective-permutes, the study declares nothing that has any",
    Scope.SHARDED_MATMUL: "acts on matrix products that are split over devices, the study declares none",
}


def known_scopes(spec: StudySpec, reference: WorkloadFacts | None) -> dict[Scope, bool]:
    """Whether the program has what settings act on; what is not known is not in it.

    Where counts and declarations differ, what one of them tells is there.

    Args:
        spec: The study.
        reference: What the program told when it ran or was compiled; None before that.
    """
    workload, nodes = spec.workload, spec.device.node_count
    mesh, count = workload.mesh, _device_count(spec, reference)
    axes = [axis for axis, size in (mesh or {}).items() if size > 1]
    has = {Scope.SINGLE_DEVICE, *(scope for axis in axes for scope in GIVES[axis])}
    if max(count or 1, nodes, math.prod((mesh or {}).values())) > 1:
        has.add(Scope.MULTI_DEVICE)
    if nodes > 1:
        has.add(Scope.MULTI_NODE)
    lacks: set[Scope] = set()
    if mesh is not None:
        lacks |= {Scope.MULTI_DEVICE, Scope.COLLECTIVE_PERMUTE, Scope.SHARDED_MATMUL}
    if count == 1:
        lacks.add(Scope.MULTI_DEVICE)
    if workload.command is None or (Scope.MULTI_DEVICE in lacks and Scope.MULTI_DEVICE not in has):
        lacks.add(Scope.MULTI_NODE)  # a command may start processes elsewhere, an entry runs where it is put
    return {scope: scope in has for scope in Scope if scope in has | lacks}


def why_asleep(entry: Setting, known: Mapping[Scope, bool], made: Collection[Scope] = ()) -> str:
    """Why a setting surely does nothing in this program, as a clause; empty if it may act.

    Args:
        entry: The setting.
        known: See `known_scopes`.
        made: What other settings of the study may bring into the program.
    """
    missing = (s for s in entry.scopes if known.get(s) is False and s not in made)
    return next((_MISSING[s] for s in missing), "")


def _device_count(spec: StudySpec, reference: WorkloadFacts | None) -> int | None:
    """Devices of the program; None if nobody is sure."""
    told = reference.device_count if reference is not None else None
    if spec.workload.command is not None:  # a program of the user's tells of its own process at most
        return spec.device.count or (told if told and told > 1 else None)
    return told or spec.device.count or (1 if spec.device.platform == "cpu" else None)
