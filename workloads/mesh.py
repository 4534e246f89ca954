"""Mesh axes, and rules from logical axes of arrays to mesh axes: sharding is data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from workloads.base import WorkloadError, close_matches

# Outermost first: neighbours on the last axes are neighbours on the fastest links, so what talks
# most (tensor) is last and what talks least or may cross nodes (pipeline, data) is first.
AXES = ("pipeline", "data", "fsdp", "expert", "context", "tensor")

# Logical axis -> mesh axes. A logical axis that is not named here is never split.
RULES: Mapping[str, tuple[str, ...]] = {
    # activations
    "batch": ("data", "fsdp", "expert"),
    "sequence": ("context",),
    "residual": (
        "context",
        "tensor",
    ),  # the sequence between blocks (Megatron sequence parallelism)
    "stage": ("pipeline",),
    # activations and weights
    "heads": ("tensor",),
    "ffw": ("tensor",),
    "vocab": ("tensor",),
    "expert": ("expert",),
    # weights
    "embed": ("fsdp", "expert", "context"),  # the model axis of weights: ZeRO stage 3
    "expert_embed": ("fsdp", "context"),  # that of experts, which the expert axis splits already
    "layers": ("pipeline",),
}


PINNED = "pinned_host"
"""Memory of the host that devices copy to and from on their own, as JAX names it."""


@dataclass(frozen=True)
class Layout:
    """A mesh with the rules above; models name logical axes and never a mesh axis."""

    mesh: Mesh

    def size(self, logical: str) -> int:
        """Into how many parts a logical axis is split."""
        return math.prod(self.mesh.shape[axis] for axis in RULES[logical])

    def spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        """The partition of an array whose dimensions are the given logical axes."""
        return PartitionSpec(*(RULES.get(axis) or None if axis else None for axis in axes))

    def sharding(self, axes: Sequence[str | None]) -> NamedSharding:
        """The sharding of an array whose dimensions are the given logical axes."""
        return NamedSharding(self.mesh, self.spec(axes))

    def constrain(self, x: jax.Array, *axes: str | None) -> jax.Array:
        """The array, held to the sharding of its logical axes inside a jitted program."""
        return jax.lax.with_sharding_constraint(x, self.sharding(axes))

    def zero(self, sharding: NamedSharding, shape: Sequence[int]) -> NamedSharding:
        """Sharding of optimiser state: the weight's, its largest dimension also over ``data``.

        References:
            ZeRO stage 1, https://arxiv.org/abs/1910.02054
        """
        spec = [*sharding.spec, *([None] * (len(shape) - len(sharding.spec)))]
        for dim in sorted(range(len(shape)), key=lambda d: -shape[d]):
            taken = spec[dim] if isinstance(spec[dim], tuple) else (spec[dim],) if spec[dim] else ()
            wanted = ("data", *taken)
            if shape[dim] % math.prod(self.mesh.shape[a] for a in wanted) == 0:
                spec[dim] = wanted
                return NamedSharding(self.mesh, PartitionSpec(*spec))
        return sharding

    def check(self, name: str, size: int, *logical: str) -> None:
        """Raises a WorkloadError unless a size divides evenly over its mesh axes."""
        axes = [a for axis in logical for a in RULES[axis]]
        parts = math.prod(self.mesh.shape[a] for a in axes)
        if size % parts:
            split = " x ".join(f"{a}={self.mesh.shape[a]}" for a in axes if self.mesh.shape[a] > 1)
            raise WorkloadError(
                f"`{name}` must be a multiple of {parts} (mesh {split}) but got {size}; change "
                "either of them"
            )


class _Pinned(str):
    """Name of the host's memory, equal to the missing name that JAX has after compiling."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return other is not None and str(self) != other


class _OnDescribedHost(NamedSharding):
    """A sharding in host memory for described devices, whose memories JAX does not know."""

    @property
    def memory_kind(self) -> str:
        return _Pinned(PINNED)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((PINNED, super().__hash__()))


def on_host(sharding: NamedSharding) -> NamedSharding:
    """The same sharding in the memory of the devices' hosts."""
    named = sharding.with_memory_kind(PINNED)
    return named if named.memory_kind else _OnDescribedHost(sharding.mesh, sharding.spec)


def make_layout(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Layout:
    """Lays devices out as a mesh of all `AXES`; axes that are not given have size 1.

    Args:
        sizes: Axis to size; one axis may be -1 and takes the devices that are left. Empty: all on
            ``data``.
        devices: Real or compile-only devices, `jax.devices()` when None. The first ones are used
            where the mesh needs fewer, as long as no process is left without a device.

    Raises:
        WorkloadError: If an axis is not known, or the sizes do not fit the devices.
    """
    for axis, size in sizes.items():
        if axis not in AXES:
            raise WorkloadError(
                f"a mesh axis must be one of {', '.join(AXES)} but got "
                f"`{axis}`{close_matches(axis, AXES)}"
            )
        if type(size) is not int or (size < 1 and size != -1):
            raise WorkloadError(
                f"the size of mesh axis `{axis}` must be a whole number >= 1, or -1, but got "
                f"{size!r}"
            )
    found = list(jax.devices() if devices is None else devices)
    free = [axis for axis in AXES if sizes.get(axis) == -1] or (["data"] if not sizes else [])
    if len(free) > 1:
        raise WorkloadError(f"only one mesh axis may be -1 but got {' and '.join(free)}")
    fixed = math.prod(size for size in sizes.values() if size > 0)
    rest = len(found) // fixed if free else 1
    needed = fixed * rest
    if needed > len(found) or needed == 0 or (free and needed != len(found)):
        wanted = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise WorkloadError(
            f"the mesh must fit the {len(found)} devices there are but got {wanted} = {fixed} "
            f"{'or a multiple' if free else 'devices'}; change the mesh, or ask for more devices"
        )
    used = found[:needed]
    idle = {d.process_index for d in found} - {d.process_index for d in used}
    if idle:
        raise WorkloadError(
            f"every process must own a device of the mesh but {len(idle)} of them would be idle "
            "with "
            f"{needed} of {len(found)} devices; make the mesh larger or start fewer processes"
        )
    shape = [rest if axis in free else sizes.get(axis, 1) for axis in AXES]
    return Layout(
        Mesh(np.array(used).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    )
