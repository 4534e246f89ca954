"""Options together with flags: batch, remat, mesh and precision act jointly within memory.

The value of a set is its time for each token. 10 to 60 flags lie beside the four options, as in the
families `sparse`.

* **Memory that is real**: the default's peak is that of a model compiled for eight H100s
  (`benchmarks/results/models_8xh100.json`); a flag's share of it is what a value changed in a
  program that was compiled for the same GPU (`benchmarks/results/compiled_peaks`). The limit is
  three quarters of 80 GB, as JAX has it.
* **Drawn per seed**: how the peak splits into state and activations, what each recomputation keeps
  of them, how the meshes shard both, what a token costs at small batches, in recomputation, between
  devices and at each precision.
* **Flags**: 0 to 5 pay 0.5 to 9 %, 0 to 4 harm by 1 to 30 %, up to one in twenty values fails, one
  third of a cell's values change memory.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from autotune.compiler.screen import DEFAULT_MEMORY_FRACTION
from autotune.model.options import option_setting, option_text
from autotune.settings.space import Parameter, SearchSpace
from benchmarks.search.families import effect_of, other_code, simple, threshold
from benchmarks.search.problems import Codes, Floats, Problem, Together

OPTIONS = "options"

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "benchmarks" / "results" / "models_8xh100.json"
COMPILED_PEAKS = ROOT / "benchmarks" / "results" / "compiled_peaks"

LIMIT_GIB = 80e9 / 2**30 * DEFAULT_MEMORY_FRACTION

BATCHES = (1, 2, 4, 8, 16)
REMATS = ("full", "dots", "none")
MESHES = ({"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"data": 2, "fsdp": 4}, {"data": 8})
DTYPES = ("float32", "bfloat16")

Rng = np.random.Generator


def draw_options(seed: int, settings: int | None = None) -> Problem:
    """One space; equal seeds give equal spaces.

    Args:
        settings: How many flags and options; None for 14 to 64.
    """
    rng = np.random.default_rng([102, seed])
    count = settings - 4 if settings is not None else round(_log_uniform(rng, 10, 60))
    flags = [
        (simple, threshold)[int(rng.random() < 0.3)](rng, f"xla_made_up_{i:02d}", f"group {i // 6}")
        for i in range(count)
    ]
    space = SearchSpace((*_options(rng), *flags))
    bare = Problem(
        f"{OPTIONS} {seed}", space, tuple(np.zeros(len(p.choices)) for p in space.parameters)
    )
    places = [int(i) for i in 4 + rng.permutation(count)]
    good_count, bad_count = int(rng.integers(0, 6)), int(rng.integers(0, 5))
    good, harmful = places[:good_count], places[good_count : good_count + bad_count]
    mains = list(bare.mains)
    for i in (*good, *harmful):
        size = _log_uniform(rng, 0.005, 0.09) if i in good else _log_uniform(rng, 0.01, 0.3)
        mains[i] = effect_of(rng, bare, i, size=size, is_good=i in good)
    peak = float(rng.choice(_peaks()))
    share = float(rng.uniform(0.0, 0.05))
    values = [
        (i, v) for i in range(4, len(mains)) for v in range(bare.sizes[i]) if v != bare.defaults[i]
    ]
    return Problem(
        bare.name,
        space,
        tuple(mains),
        hazards=tuple((value,) for value in values if rng.random() < share),
        recipes=_recipes(rng, bare, good, mains),
        good=tuple(good),
        memory=_of_flags(rng, bare, peak / (LIMIT_GIB - peak)),
        together=_together(rng, bare, peak),
        default_peak=peak / LIMIT_GIB,
        noise=_log_uniform(rng, 0.003, 0.03),
    )


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _options(rng: Rng) -> list[Parameter]:
    """The four options; the reference recomputes and has a small batch, as if it had to fit."""
    values: dict[str, tuple[Any, ...]] = {
        "batch": BATCHES,
        "remat": REMATS,
        "mesh": MESHES,
        "dtype": DTYPES,
    }
    defaults = {
        "batch": BATCHES[rng.integers(3)],
        "remat": REMATS[rng.integers(2)],
        "mesh": MESHES[0],
        "dtype": DTYPES[rng.integers(2)],
    }
    return [
        Parameter(
            name=option_setting(name),
            choices=tuple(map(option_text, choices)),
            default=option_text(defaults[name]),
        )
        for name, choices in values.items()
    ]


def _together(rng: Rng, problem: Problem, peak: float) -> Together:
    """Time for each token and memory of all combinations of options.

    Args:
        peak: Of the default, in GiB.
    """
    batch = np.array(BATCHES, dtype=float)[:, None, None, None]
    kept = np.array([rng.uniform(0.05, 0.3), rng.uniform(0.3, 0.7), 1.0])[None, :, None, None]
    again = np.array([rng.uniform(0.2, 0.35), rng.uniform(0.02, 0.15), 0.0])[None, :, None, None]
    fewer = np.array([1.0, rng.uniform(0.5, 0.9), 1.0, 1.0])[
        None, None, :, None
    ]  # activations by tensor parallelism
    state = np.array([1.0, 1.0, 2.0, 8.0])[None, None, :, None]  # copies of the sharded state
    between = np.array([1.0, *rng.uniform(0.3, 2.5, 3)])[None, None, :, None]
    low = np.array([1.0, 0.0])[None, None, None, :]  # float32
    activations = batch * kept * fewer * (1 + low)
    states = state * (1 + low * rng.uniform(0.0, 1.0))
    compute = (1 + rng.uniform(0.05, 1.0) / batch) * (1 + again) * (1 + low * rng.uniform(0.2, 1.5))
    exposed = _log_uniform(rng, 0.02, 0.6) * between / batch * (1 + low)
    here = tuple(int(c) for c in problem.defaults[:4])
    split = rng.uniform(0.2, 0.8)
    states, activations = np.broadcast_arrays(states, activations)
    needed = peak * (split * activations / activations[here] + (1 - split) * states / states[here])
    tokens = np.log(compute + exposed)
    return Together((0, 1, 2, 3), tokens - tokens[here], (needed - peak) / (LIMIT_GIB - peak))


def _of_flags(rng: Rng, problem: Problem, unit: float) -> tuple[Floats, ...]:
    """Memory of each value of the flags, as compiled, in units of the room that the default leaves.

    Args:
        unit: The default's peak in these units.
    """
    cells = _changes()
    changes = np.array(cells[int(rng.integers(len(cells)))])
    found = [np.zeros(size) for size in problem.sizes]
    for i, own in enumerate(found[4:], 4):
        own[:] = rng.choice(changes, len(own)) * unit
        own[problem.defaults[i]] = 0.0
    return tuple(found)


@functools.cache
def _peaks() -> list[float]:
    """Peaks, in GiB, of models compiled at sequence 4096 that leave an eighth of the limit."""
    models = json.loads(COMPILED.read_text()).values()
    return [
        m["peak_gib"]
        for m in models
        if m["options"]["seq"] == 4096 and m["peak_gib"] < LIMIT_GIB * 7 / 8
    ]


@functools.cache
def _changes() -> list[list[float]]:
    """Relative changes of the peak by each value, for each program compiled for H100s."""
    cells: dict[tuple[str, ...], list[tuple[str | None, int]]] = defaultdict(list)
    for path in sorted(COMPILED_PEAKS.glob("jaxlib-*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if row.get("target") == "h100-sxm" and "peak_bytes" in row:
                cell = (path.stem, row["workload"], str(row["gpus"]))
                cells[cell].append((row.get("name"), row["peak_bytes"]))
    found = []
    for rows in cells.values():
        usual = next(peak for name, peak in rows if name is None)
        found.append([peak / usual - 1 for name, peak in rows if name is not None])
    return found


def _recipes(rng: Rng, problem: Problem, good: list[int], mains: list[Floats]) -> tuple[Codes, ...]:
    """Published sets: of flags only, for options are the user's own."""
    found = []
    for _ in range(int(rng.integers(0, 4))):
        codes = problem.defaults.copy()
        for i in rng.integers(4, len(codes), 5):
            codes[i] = other_code(rng, problem, int(i))
        for i in good:
            if rng.random() < 0.3:
                codes[i] = int(np.argmin(mains[i]))
        found.append(codes)
    return tuple(found)
