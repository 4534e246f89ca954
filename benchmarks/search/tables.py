"""Recorded tables of whole spaces of kernels: this sampler against Kernel Tuner's strategies.

A table is a file in the T4 format. Its space holds the sets that were recorded; sets that did not
run are part of it and count as evaluations. A search is scored over evaluations up to the method's
cutoff (`benchmarks.search.scoring`). Sets that the space does not hold break its rules: Kernel
Tuner's strategies and `AdditiveFlagSampler` are told these, other samplers of Optuna are asked
again, which counts as nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib.util
import io
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import TrialState

from autotune.search.sampler import SD_KEY, AdditiveFlagSampler
from benchmarks.search.runs import Row, made_with, name_of, read_rows, write_row
from benchmarks.search.scoring import cutoff, score, table_baseline

TABLES = tuple(
    f"{k}_{g}" for k in ("convolution", "dedispersion") for g in ("A100", "A4000", "W6600")
)

KERNEL_TUNER = (
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "pso",
    "genetic_algorithm",
    "greedy_ils",
    "dual_annealing",
    "diff_evo",
    "firefly_algorithm",
    "simulated_annealing",
    "bayes_opt",
    "random_sample",
)
"""Strategies of Kernel Tuner 1.5, each with its own options as they come."""

SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "additive": lambda seed: AdditiveFlagSampler(seed=seed),
    "without rules": lambda seed: AdditiveFlagSampler(seed=seed),
    "TPE": lambda seed: TPESampler(seed=seed),
}
"""Samplers of Optuna; without rules it is not told which sets the space holds."""

CONTESTANTS = (*SAMPLERS, "uniform", *(f"kt:{s}" for s in KERNEL_TUNER))

ASKS = 200
"""Proposals that break the rules, or are known, after which any set is drawn that does not."""

LEAST_SD = 1e-3

Config = tuple[Any, ...]


class Entry(NamedTuple):
    """A recorded set: its time in ms, None if it failed, and the standard error of its log."""

    time: float | None
    sd: float


class Table(NamedTuple):
    """One space.

    Attributes:
        name: Kernel and GPU.
        names: Parameters that have more than one value.
        values: Of each, in order.
        entries: What was recorded of each set.
    """

    name: str
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    entries: dict[Config, Entry]

    @property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """All times that there are."""
        return np.array([e.time for e in self.entries.values() if e.time is not None])


def load_table(path: Path, name: str) -> Table:
    """A table of a file in the T4 format."""
    with gzip.open(path, "rt") as file:
        results = json.load(file)["results"]
    held: dict[str, set[Any]] = {}
    for result in results:
        for key, value in result["configuration"].items():
            held.setdefault(key, set()).add(value)
    names = tuple(n for n, values in held.items() if len(values) > 1)
    entries = {tuple(r["configuration"][n] for n in names): _entry(r) for r in results}
    return Table(name, names, tuple(tuple(sorted(held[n])) for n in names), entries)


def _entry(result: dict[str, Any]) -> Entry:
    if result["invalidity"] != "correct":
        return Entry(None, LEAST_SD)
    value = next(float(m["value"]) for m in result["measurements"] if m["name"] == "time")
    runs = np.array(result["times"]["runtimes"], dtype=float)
    sd = float(runs.std(ddof=1) / runs.mean() / np.sqrt(len(runs))) if len(runs) > 1 else LEAST_SD
    return Entry(value, max(sd, LEAST_SD))


# ------------------------------------------------------------------ searches


def _uniform(table: Table, seed: int, evaluations: int) -> Iterator[Config]:
    rng = np.random.default_rng(seed)
    configs = list(table.entries)
    yield from (configs[int(i)] for i in rng.permutation(len(configs))[:evaluations])


def _sampled(table: Table, seed: int, evaluations: int, contestant: str) -> Iterator[Config]:
    """A sampler of Optuna; sets are told as they are tried, those that did not run as failed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = SAMPLERS[contestant](seed)
    study = optuna.create_study(sampler=sampler)
    space: dict[str, BaseDistribution] = {
        n: CategoricalDistribution(v) for n, v in zip(table.names, table.values, strict=True)
    }
    if isinstance(sampler, AdditiveFlagSampler) and contestant != "without rules":
        sampler.is_allowed = lambda values: tuple(values[n] for n in table.names) in table.entries
    rng = np.random.default_rng([seed, 5])
    configs, tried = list(table.entries), set[Config]()
    for _ in range(min(evaluations, len(configs))):
        config = None
        for _ in range(ASKS):
            params = _point(study, sampler, space)
            proposed = tuple(params[n] for n in table.names)
            if proposed in table.entries and proposed not in tried:
                config = proposed
                break
        while config is None or config in tried:
            config = configs[int(rng.integers(len(configs)))]
        tried.add(config)
        entry = table.entries[config]
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.FAIL if entry.time is None else TrialState.COMPLETE,
                value=entry.time,
                params=dict(zip(table.names, config, strict=True)),
                distributions=space,
                user_attrs={SD_KEY: entry.sd},
            )
        )
        yield config


def _point(
    study: optuna.Study, sampler: BaseSampler, space: dict[str, BaseDistribution]
) -> dict[str, Any]:
    """One proposal, without a trial that is opened for it."""
    trial = optuna.trial.create_trial(state=TrialState.RUNNING)
    trial.number = len(study.get_trials(deepcopy=False))
    related = sampler.sample_relative(
        study, trial, sampler.infer_relative_search_space(study, trial)
    )
    return {
        n: related[n] if n in related else sampler.sample_independent(study, trial, n, d)
        for n, d in space.items()
    }


def _kernel_tuner(table: Table, seed: int, evaluations: int, strategy: str) -> Iterator[Config]:
    """A strategy of Kernel Tuner's own package in its simulation mode, as it comes."""
    from constraint import FunctionConstraint  # type: ignore[import-not-found]
    from kernel_tuner import tune_kernel  # type: ignore[import-not-found]

    random.seed(seed)
    np.random.seed(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        path = Path(folder) / "cache.json"
        path.write_text(_as_cache(table))
        results, _ = tune_kernel(
            table.name,
            "",
            (1,),
            [],
            dict(zip(table.names, map(list, table.values), strict=True)),
            # Sets that were recorded as failed are of the space: nobody knows before that they
            # fail.
            restrictions=[FunctionConstraint(lambda *config: config in table.entries)],
            strategy=strategy,
            strategy_options={"max_fevals": evaluations},
            cache=str(path),
            simulation_mode=True,
            quiet=True,
            seed=seed,
        )
    yield from dict.fromkeys(tuple(r[n] for n in table.names) for r in results)


@functools.lru_cache(maxsize=2)
def _cache_text(
    name: str, names: tuple[str, ...], values: tuple[tuple[Any, ...], ...], rows: tuple[Any, ...]
) -> str:
    cache = {}
    for config, entry in rows:
        time_or_error = "RuntimeFailedConfig" if entry.time is None else entry.time
        cache[",".join(map(str, config))] = {
            **dict(zip(names, config, strict=True)),
            "time": time_or_error,
        }
        if entry.time is None:
            cache[",".join(map(str, config))]["__error__"] = "RuntimeFailedConfig"
    head = {
        "device_name": "recorded",
        "kernel_name": name,
        "problem_size": 1,
        "tune_params_keys": list(names),
        "tune_params": dict(zip(names, map(list, values), strict=True)),
        "objective": "time",
    }
    return json.dumps({**head, "cache": cache})


def _as_cache(table: Table) -> str:
    """The table as Kernel Tuner's cache file."""
    return _cache_text(table.name, table.names, table.values, tuple(table.entries.items()))


def _search(contestant: str, table: Table, seed: int, evaluations: int) -> Iterator[Config]:
    """The sets that a contestant tries, in order."""
    if contestant == "uniform":
        return _uniform(table, seed, evaluations)
    if contestant.startswith("kt:"):
        return _kernel_tuner(table, seed, evaluations, contestant.removeprefix("kt:"))
    return _sampled(table, seed, evaluations, contestant)


# ------------------------------------------------------------------ runs


def run_tables(
    path: Path,
    data: Path,
    *,
    tables: Sequence[str],
    seeds: Iterable[int],
    strategies: Sequence[str],
    most: int | None,
    again: bool,
    until: float | None,
) -> int:
    """Runs what is not there yet; returns the exit status, 0 also where there are no tables.

    Args:
        path: Where the rows are.
        data: Folder of the tables.
        tables: Which of them.
        seeds: Of the searches.
        strategies: Who searches.
        most: Most evaluations; None for the method's cutoff.
        again: Whether what is there is run again.
        until: Time, as `time.time` has it, after which no run is begun.
    """
    files = {name: data / f"{name}_T4.json.gz" for name in tables}
    if missing := [str(f) for f in files.values() if not f.exists()]:
        print(
            f"skipped: {', '.join(missing)} must be there but is not; say where by --data",
            file=sys.stderr,
        )
        return 0
    has_kernel_tuner = importlib.util.find_spec("kernel_tuner") is not None
    if not has_kernel_tuner and any(s.startswith("kt:") for s in strategies):
        print(
            "Kernel Tuner's strategies are left out: kernel_tuner is not installed here",
            file=sys.stderr,
        )
    done = set() if again else {name_of(row) for row in read_rows(path)}
    loaded = {name: load_table(file, name) for name, file in files.items()}
    for seed in seeds:
        for name, table in loaded.items():
            for contestant in strategies:
                if contestant.startswith("kt:") and not has_kernel_tuner:
                    continue
                if until is not None and time.time() > until:
                    return 0
                row = {"family": name, "seed": seed, "strategy": contestant, "most": most}
                if name_of(row) not in done:
                    result = run_one_table(table, contestant, seed, most)
                    write_row(path, {**row, **result, "made": made_with()})
                    print(
                        f"{name} {seed} {contestant}: {result['score']:.2f}, "
                        f"{result['seconds']:.3f} s a proposal",
                        file=sys.stderr,
                        flush=True,
                    )
    return 0


def run_one_table(table: Table, contestant: str, seed: int, most: int | None) -> Row:
    """One search of one table."""
    times = table.times
    evaluations = min(cutoff(times), most or len(times))
    values = tuple(times.max() if e.time is None else e.time for e in table.entries.values())
    baseline, optimum = table_baseline(values, evaluations), float(times.min())
    began = time.process_time()
    tried = list(_search(contestant, table, seed, evaluations))[:evaluations]
    spent = time.process_time() - began
    found = [table.entries[c].time for c in tried]
    # What did not run counts as the slowest set; a search that stops early keeps what it has.
    best = np.minimum.accumulate([float(times.max()) if t is None else t for t in found])
    best = np.append(best, np.full(evaluations - len(best), best[-1]))
    return {
        "evaluations": evaluations,
        "tried": len(tried),
        "score": round(score(best, baseline, optimum), 4),
        "best": round(optimum / float(best[-1]), 4),
        "failed": sum(t is None for t in found),
        "seconds": round(spent / max(len(tried), 1), 4),
    }
