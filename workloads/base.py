"""What a workload is, how its options are checked, and the one place where a step is jitted."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

import jax

State = Any  # a pytree of arrays: weights and optimiser state
Batch = Any  # a pytree of arrays
Metrics = Mapping[str, jax.Array]  # {"loss": f32[], "grad_norm": f32[]}
T = TypeVar("T")


class WorkloadError(ValueError):
    """A workload cannot be built as asked: what must hold, what was got, what to do."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step, the arrays it needs, and what is known about its cost.

    A user's own object needs ``step``, ``init`` and ``batch`` only; `workloads.loading` fills the
    rest with defaults below, and whoever reads a field that may be ``None`` has to cope with that.

    Attributes:
        name: What reports call it, such as ``llama-small``.
        step: Pure and not jitted: ``(state, batch) -> (state, {"loss": f32[], "grad_norm":
            f32[]})``.
        init: Seed to a state on devices.
        batch: Step index to a batch on devices, a function of the index alone.
        abstract_state: The state as `jax.ShapeDtypeStruct` with shardings, or None.
        abstract_batch: The batch likewise, or None.
        mesh: The devices and their axes, or None.
        tokens_per_step: Tokens (or samples) of one optimiser update, over all devices.
        flops_per_step: Model FLOPs of one optimiser update, over all devices, without
            recomputation.
        param_count: Trained parameters.
        layer_bytes: Bytes of one layer over all devices (``weights``, ``gradients``), for combine
            thresholds.
        config: JSON-able; everything that defines the program.
    """

    name: str
    step: Callable[[State, Batch], tuple[State, Metrics]]
    init: Callable[[int], State]
    batch: Callable[[int], Batch]
    abstract_state: State | None = None
    abstract_batch: Batch | None = None
    mesh: jax.sharding.Mesh | None = None
    tokens_per_step: int | None = None
    flops_per_step: float | None = None
    param_count: int | None = None
    layer_bytes: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Any]:
        """What is known of the cost of a step, as plain numbers; of the mesh, its axes."""
        return {
            "tokens_per_step": self.tokens_per_step,
            "flops_per_step": self.flops_per_step,
            "layer_bytes": dict(self.layer_bytes or {}),
            "mesh": {str(k): int(v) for k, v in self.mesh.shape.items()}
            if self.mesh is not None
            else {},
        }


def jit_step(workload: Workload) -> Any:
    """The jitted step, its state donated and returned with the shardings it came with.

    Call it with real arrays, or ``lower(workload.abstract_state, workload.abstract_batch)`` it,
    also for compile-only devices. No mesh context is needed for the presets; a user's step that
    relies on one is run under ``jax.set_mesh(workload.mesh)`` by the caller.
    """
    if workload.abstract_state is None:
        return jax.jit(workload.step, donate_argnums=0)
    shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), workload.abstract_state)
    return jax.jit(workload.step, donate_argnums=0, out_shardings=(shardings, None))


def close_matches(name: str, known: Iterable[str]) -> str:
    """Gives a clause such as ``; did you mean `a` or `b`?``, or an empty string."""
    found = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(f'`{f}`' for f in found)}?" if found else ""


def choice(*values: str) -> Any:
    """A field of an options dataclass that takes one of a few words; the first is the default."""
    return field(default=values[0], metadata={"choices": values})


def parse_options(cls: type[T], options: Mapping[str, Any]) -> T:
    """Makes an options dataclass from plain values, each checked for its type and range.

    Numbers must be at least 1 (whole) or above 0 (real) unless the field's metadata has a
    ``minimum``.

    Raises:
        WorkloadError: If a value is missing, of the wrong type, or out of range. The caller checks
            names.
    """
    values: dict[str, Any] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        if item.name in options:
            values[item.name] = _value(item.name, options[item.name], str(item.type), item.metadata)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise WorkloadError(
                f"option `{item.name}` must be given; this workload has no default for it"
            )
    return cls(**values)


def _value(name: str, value: Any, kind: str, metadata: Mapping[Any, Any]) -> Any:
    """One option's value, checked; a whole number for a real one becomes real."""
    legal: Any = {"int": int, "float": (int, float), "bool": bool, "str": str}.get(kind, Mapping)
    if not isinstance(value, legal) or (isinstance(value, bool) and kind != "bool"):
        raise WorkloadError(f"option `{name}` must be of type {kind} but got {value!r}")
    choices = metadata.get("choices")
    if choices and value not in choices:
        raise WorkloadError(
            f"option `{name}` must be one of {', '.join(choices)} but got "
            f"{value!r}{close_matches(value, choices)}"
        )
    minimum = metadata.get("minimum", 1)
    if kind == "int" and value < minimum:
        raise WorkloadError(f"option `{name}` must be at least {minimum} but got {value!r}")
    if kind == "float" and not (0 < value < float("inf") or value == metadata.get("minimum")):
        raise WorkloadError(f"option `{name}` must be above 0 but got {value!r}")
    return float(value) if kind == "float" else value
