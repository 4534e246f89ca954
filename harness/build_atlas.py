"""Builds the atlas: compiles every setting for every kind of model and GPU, without a GPU.

    python -m harness.build_atlas [--kind KIND] [--target GPU] [--gpus N] [--into FOLDER] [--time-budget 2h]

The table of the installed release is written cell by cell; the same command goes on where it was stopped.

Most settings change nothing in most cells. Settings that are guessed to act are compiled alone, value by value. All
others are compiled together, in sets that each hold all of them, until every value was in a set with the default's
program. `autotune.compiler.interaction` finds what changed a set with another program; that is then compiled alone.
A wrong guess costs compilations but gives no wrong verdict, except for effects that hide each other and for those
that two settings have only together; see `AtlasRow.tried`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from autotune.compiler.interaction import Chains, InteractionSearch
from autotune.compiler.program import CompiledProgram, changes
from autotune.compiler.screen import Screener, chains, find_canary, open_screener, spread
from autotune.compiler.targets import Target, Topology, load_target
from autotune.machine.environment import caller_environment, default_cache_dir, driver_python
from autotune.machine.files import replace_file
from autotune.model.errors import AutotuneError, LaunchError, SettingError, StoppedError, close_matches
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkloadFacts
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import parse_duration
from autotune.settings.atlas import HEADER, AtlasRow, AtlasVerdict, read_rows
from autotune.settings.catalog import NEVER_SEARCHED, Setting, Stage, Tier, read_entries
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.space import Parameter, SearchSpace, SpaceBuilder

TARGETS = ("h100-sxm", "a100-sxm-80", "h200", "b200", "gb200")
"""GPUs of the atlas by default, in the order of compiling."""

MOST_CHANGES = 6
"""Clauses on changes in a row; those on collectives come first."""

NUMBERS = 3
"""Values of a numeric setting that are compiled, smallest and largest included."""

GUESSED_TIERS = (Tier.TUNE, Tier.NUMERICS, Tier.LEGACY)
"""Tiers that are guessed to act where neither a cell nor a test program tells."""

COMPILED_TIERS = (*GUESSED_TIERS, Tier.EXPERT, Tier.AVOID)
"""Tiers whose settings are compiled."""

HALVES = 4
"""Rows of half of the settings that change nothing, because others may hide an effect."""

SAY_EVERY_S = 60.0

_UNSEEN = {
    Stage.RUNTIME: "read while the program runs",
    Stage.AUTOTUNER: "decides kernels that are timed on the device",
    Stage.CLIENT: "read when the process or its backend starts",
}
_NOT_COMPILED = {
    Tier.TOOL: "not compiled: diagnostics or compile time only",
    Tier.DANGER: "not compiled: not for training",
    Tier.LISTED: "not compiled: nobody judged yet which values are worth a try",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """A kind of model, with the workload that is compiled for it; its batch is `sequences_per_gpu` times the GPUs."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    title: str
    entry: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sequences_per_gpu: float = 1.0
    gpus: tuple[int, ...] = (8, 64)


def load_kinds() -> dict[str, ModelKind]:
    """Loads the kinds of models by name."""
    return read_entries("atlas/kinds.toml", ModelKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A kind of model on a number of GPUs of one kind."""

    kind: ModelKind
    target: Target
    gpus: int

    def __str__(self) -> str:
        return f"{self.kind.name} on {self.gpus} {self.target.name}"

    @property
    def topology(self) -> Topology:
        """Full machines, or a part of one."""
        per_node = self.target.network.gpus_per_node
        if self.gpus <= per_node:
            return Topology(1, self.gpus)
        return Topology(self.gpus // per_node, per_node)

    @property
    def study(self) -> StudySpec:
        """A study of the cell without settings."""
        topology = self.topology
        options = {**self.kind.options, "batch": max(1, round(self.kind.sequences_per_gpu * self.gpus))}
        device = {"platform": "cuda", "count": topology.device_count, "node_count": topology.nodes}
        return parse_study(
            {"name": "atlas", "workload": {"entry": self.kind.entry, "options": options}, "device": device}
        )


def planned_cells(kinds: Sequence[str] = (), targets: Sequence[str] = (), gpus: Sequence[int] = ()) -> list[Cell]:
    """Selects cells by kind of model, GPU and count, small ones first; empty arguments mean all.

    Raises:
        SettingError: If a kind is unknown, or no cell fits.
        StudyFileError: If a GPU is unknown.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Cells to build, and where; without `cache_dir` a later build compiles them again."""

    cells: Sequence[Cell]
    folder: Path
    cache_dir: Path | None = None
    limit_s: float | None = None


def build_atlas(plan: Plan, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Path:
    """Compiles the cells that the table lacks, and returns the release's file; each complete cell is written at once.

    Raises:
        LaunchError: If no CUDA plugin is installed.
        ValidationError: If the existing table cannot be read.
    """
    known = KnownSettings(probe_build(driver_python(), platform="cuda"))
    if known.build.plugin is None:
        raise LaunchError(
            "to build the atlas a CUDA plugin must be installed but none is; in a clone: pip install -e '.[screen]'"
        )
    jaxlib = known.build.jaxlib
    path = plan.folder / f"jaxlib-{jaxlib}.jsonl"
    rows = read_rows(path) if path.exists() else []
    others = [r for other in sorted(plan.folder.glob("jaxlib-*.jsonl")) if other != path for r in read_rows(other)]
    there = {r.cell for r in rows if r.kind == "cell"}
    started = clock()

    def is_over() -> bool:
        return plan.limit_s is not None and clock() - started > plan.limit_s

    for number, cell in enumerate(plan.cells, 1):
        if (jaxlib, cell.kind.name, cell.target.name, cell.gpus) in there:
            continue
        if is_over():
            say(f"the time is up: {len(plan.cells) - number + 1} cells are left; the same command continues")
            break
        say(f"cell {number} of {len(plan.cells)}: {cell}")
        guessed = guess_active([*others, *rows], cell, known)
        try:
            found, space = _cell_rows(plan, cell, known, guessed, _Progress(say, clock), is_over)
        except StoppedError:
            say(f"the time is up within {cell}: what was compiled is kept, and the same command continues")
            break
        except AutotuneError as error:
            say(f"{cell} is left out: {error}")
            continue
        rows = [r for r in rows if r.workload] + found + build_rows(known, space)
        plan.folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, atlas_text(rows))
    return path


def space_of_all(spec: StudySpec, known: KnownSettings, reference: WorkloadFacts) -> SearchSpace:
    """Builds a space of every setting that a compilation can judge, with the values worth trying.

    Scopes are ignored, because compiling shows whether a setting acts.
    """
    builder = _AtlasSpace(spec, known, reference, {}, 1)
    for entry in known.catalog.values():
        builder.add_to_compile(entry)
    return builder.space()


class _AtlasSpace(SpaceBuilder):
    def add_to_compile(self, entry: Setting) -> None:
        """Adds a setting of the platform if it acts on the program and the catalogue has values."""
        setting = self._known[entry.name]
        is_fit = entry.stage is Stage.PROGRAM and entry.tier in COMPILED_TIERS and setting.exists
        if is_fit and entry.platform in ("any", self._platform):
            parameter = self._catalog_parameter(entry, setting)
            if parameter is not None:
                self.found[entry.name] = parameter

    def _conditions(self, name: str) -> dict[str, tuple[str, ...]] | str:
        """As in a study; what would never act there has no condition here."""
        found = super()._conditions(name)
        return {} if isinstance(found, str) else found


class _QuickSearch(InteractionSearch):
    """Covers each value of a no-op with all other no-ops, conditions, and `HALVES` rows of half of them."""

    _halves = HALVES

    def _chained(self, chains: Chains) -> list[FlagSet]:
        return list(_joined(super()._chained(chains)))

    def _plan_pairs(self) -> bool:
        left, self._halves = self._halves, 0
        row = {n: self._random.choice(v) for n, v in self.no_ops.items()}
        self._queue += [FlagSet({n: v for n, v in row.items() if self._random.random() < 0.5}) for _ in range(left)]
        return bool(self._queue)

    def _wanted(self) -> Iterator[tuple[str, ...]]:
        yield from ((name, v) for name, values in self.no_ops.items() for v in values)

    def _combinations(self, row: FlagSet) -> Iterable[tuple[str, ...]]:
        return row.items()


def _joined(rows: Iterable[FlagSet]) -> Iterator[FlagSet]:
    """Merges rows greedily: each into the first that agrees with it on every setting."""
    joined: list[dict[str, str]] = []
    for row in rows:
        fitting = next((j for j in joined if all(j.get(n, v) == v for n, v in row.items())), None)
        if fitting is None:
            joined.append(dict(row))
        else:
            fitting |= row
    yield from map(FlagSet, joined)


class _Progress:
    """Reports every minute how many sets of a cell are compiled, and the current one."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._said_s = clock()
        self._done = self._of = 0

    def compiled(self, done: int, of: int) -> None:
        self._done, self._of = done, of

    def at_work(self, what: str) -> None:
        if self._clock() - self._said_s >= SAY_EVERY_S:
            self._said_s = self._clock()
            self._say(f"  {self._done} of {self._of} planned sets compiled; {what[:80]}")


def _cell_rows(
    plan: Plan, cell: Cell, known: KnownSettings, guessed: set[str], progress: _Progress, is_over: Callable[[], bool]
) -> tuple[list[AtlasRow], SearchSpace]:
    """Builds all rows of a cell; also returns the search space that was tried."""
    fields = {"jaxlib": known.build.jaxlib, "workload": cell.kind.name, "target": cell.target.name, "gpus": cell.gpus}
    with open_screener(
        cell.study,
        study_dir=Path(os.curdir),
        target=cell.target,
        topology=cell.topology,
        cache_dir=plan.cache_dir,
        processors=lambda: len(os.sched_getaffinity(0)),
        progress=progress.at_work,
    ) as (moved, screener):
        space = space_of_all(moved, known, screener.reference())
        builder = CellBuilder(screener, space, fields, guessed, progress=progress.compiled, is_over=is_over)
        rows = builder.settings()
        return [builder.cell(), *rows], space


def guess_active(rows: Iterable[AtlasRow], cell: Cell, known: KnownSettings) -> set[str]:
    """Guesses which settings act in a cell: from cells of its kind of model, else from the catalogue."""
    told = [r for r in rows if r.workload == cell.kind.name and r.kind == "setting"]
    seen = {r.name for r in told}
    acting = {r.name for r in told if r.verdict is not AtlasVerdict.SAME}
    for name, entry in known.catalog.items():
        if name not in seen and entry.tier in GUESSED_TIERS:
            acting.add(name)
    return acting


def build_rows(known: KnownSettings, space: SearchSpace) -> list[AtlasRow]:
    """Builds the rows of a release that hold for all its cells."""
    compiled = {p.name for p in space.parameters}
    rows = []
    for name in known.catalog:
        verdict, message = _of_release(name, known, is_compiled=name in compiled)
        value = known[name].default or "" if verdict is AtlasVerdict.DEFAULT else ""
        rows.append(AtlasRow(jaxlib=known.build.jaxlib, name=name, value=value, verdict=verdict, message=message))
    return rows


def _of_release(name: str, known: KnownSettings, *, is_compiled: bool) -> tuple[AtlasVerdict, str]:
    """Verdict on a setting that holds for all cells, and its reason."""
    setting = known[name]
    entry = setting.entry
    assert entry is not None
    if is_compiled:
        return AtlasVerdict.DEFAULT, ""
    if entry.platform in NEVER_SEARCHED:
        return AtlasVerdict.ELSEWHERE, NEVER_SEARCHED[entry.platform]
    if entry.kind in ("xla", "jax") and not setting.exists:
        since = f"it came with {entry.since}" if entry.since else ""
        gone = f"it went with {entry.removed}" if entry.removed else ""
        return AtlasVerdict.REJECTED, "; ".join(filter(None, ["this release does not have it", since, gone]))
    if entry.platform not in ("any", "cuda"):
        return AtlasVerdict.ELSEWHERE, f"acts on {entry.platform}"
    if entry.tier is Tier.NOOP or (setting.flag is not None and not setting.flag.sets):
        return AtlasVerdict.SAME, "this release takes it, but it does nothing"
    if entry.tier in _NOT_COMPILED:
        return AtlasVerdict.UNSETTLED, _NOT_COMPILED[entry.tier]
    if entry.stage is not Stage.PROGRAM:
        return AtlasVerdict.UNSEEN, _UNSEEN[entry.stage]
    return AtlasVerdict.UNSETTLED, "not compiled: the catalogue has no other value to try on this release"


@dataclass(slots=True)
class _Found:
    """`AtlasRow.needs` and `AtlasRow.tried` by setting."""

    needs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)


class CellBuilder:
    """Builds the rows of one cell.

    Args:
        guessed: Settings that are guessed to act, see `guess_active`.
        progress: Called with the numbers of compiled and of planned sets.

    Raises:
        LaunchError: By any method, if the default does not compile, or flags do not act.
        StoppedError: By any method, if `is_over` becomes true first.
    """

    def __init__(
        self,
        screener: Screener,
        space: SearchSpace,
        fields: Mapping[str, Any],
        guessed: set[str],
        *,
        progress: Callable[[int, int], None] = lambda done, of: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._screener = screener
        self._fields = dict(fields)
        self._guessed = guessed
        self._progress = progress
        self._compiled: set[FlagSet] = set()
        self._chains = _needed_chains(space)
        self.values = {p.name: _worth_compiling(p) for p in space.parameters}
        self.reference = screener.reference()
        find_canary(screener)
        screener.is_over = is_over

    def settings(self) -> list[AtlasRow]:
        """The rows of all settings."""
        # JAX reads its own options while lowering, so each set of them with others would cost a lowering.
        alone = [n for n in self.values if n in self._guessed or n.startswith("jax_")]
        self._compile([FlagSet({n: v}) for n in alone for v in self.values[n]])
        silent = {
            n: v for n, v in self.values.items() if n not in alone or (not n.startswith("jax_") and self._is_no_op(n))
        }
        found = _Found(tried=dict.fromkeys(alone, "alone") | dict.fromkeys(silent, "together"))
        self._together(silent, found)
        self._compile([FlagSet({n: v}) for n in found.needs for v in self.values[n]])
        return [self._row(n, v, found) for n, values in self.values.items() for v in values]

    def cell(self) -> AtlasRow:
        """The row of the cell itself: the default's program, and the cost of compiling."""
        results = [self._screener.result(s) for s in {FlagSet(), *self._compiled}]
        memory = self.reference.memory
        return AtlasRow(
            **self._fields,
            kind="cell",
            verdict=AtlasVerdict.DEFAULT,
            program=_short(self.reference),
            peak_bytes=memory.peak_bytes if memory else None,
            compiled=len(results),
            seconds=round(sum(r.duration_s for r in results), 1),
        )

    def _compile(self, sets: list[FlagSet]) -> None:
        """Compiles sets, several at once."""
        self._screener.compile_all(sets, self._progress)
        self._compiled |= set(sets)

    def _program(self, settings: FlagSet) -> str | None:
        """Fingerprint of a set's program; compiles it if necessary."""
        self._compiled.add(settings)
        return self._screener.fingerprint(settings)

    def _is_no_op(self, name: str) -> bool:
        """Whether every value of a setting alone gives the default's program."""
        programs = {self._screener.fingerprint(FlagSet({name: v})) for v in self.values[name]}
        return programs == {self.reference.fingerprint}

    def _together(self, silent: Mapping[str, list[str]], found: _Found) -> None:
        """Finds active settings by compiling many together, under each kernel choice."""
        left = dict(silent)
        own_choice = next(iter(self._screener.choices))
        for choice, forced in self._screener.choices.items():

            def under(settings: FlagSet, forced: FlagSet = forced) -> str | None:
                return self._program(settings.merge(forced))

            if under(FlagSet()) is None:
                continue
            acting = _QuickSearch(under, left, {}).run(self._chains, lambda rows: self._progress(rows, rows))
            if acting.unsettled:
                raise StoppedError("the time for compiling is up")
            for name, others in acting.found_active.items():
                found.needs[name] = others if choice == own_choice else (*others, choice)
            left = {n: v for n, v in left.items() if n not in acting.found_active}

    def _row(self, name: str, value: str, found: _Found) -> AtlasRow:
        fields = {**self._fields, "name": name, "value": value}
        if name not in found.needs and found.tried.get(name) == "together":
            return AtlasRow(**fields, verdict=AtlasVerdict.SAME, tried="together")
        compared = self._compared(FlagSet({name: value}))
        needs = found.needs.get(name, ())
        if compared["verdict"] is AtlasVerdict.SAME and needs and self._is_no_op(name):
            compared = {"verdict": AtlasVerdict.CHANGES, "needs": needs}
        return AtlasRow(**fields, **compared)

    def _compared(self, settings: FlagSet) -> dict[str, Any]:
        """Fields of a row that follow from the set's program."""
        result = self._screener.result(settings)
        if result.program is None:
            assert result.failure is not None
            return {"verdict": AtlasVerdict.FAILS, "message": f"{result.failure.kind}: {result.failure.message}"[:300]}
        program, memory = result.program, result.program.memory
        if program.fingerprint == self.reference.fingerprint:
            return {"verdict": AtlasVerdict.SAME, "tried": "alone", "program": _short(program)}
        return {
            "verdict": AtlasVerdict.CHANGES,
            "program": _short(program),
            "changes": tuple(changes(self.reference, program))[:MOST_CHANGES],
            "peak_bytes": memory.peak_bytes if memory else None,
        }


def _needed_chains(space: SearchSpace) -> dict[str, list[FlagSet]]:
    """For each setting whose conditions the defaults do not fulfil, one set that fulfils them."""
    by_name = {p.name: p for p in space.parameters}

    def acts_by_default(parameter: Parameter) -> bool:
        conditions = (parameter.condition or {}).items()
        return all(any(by_name[n].is_absent(v) for v in values) for n, values in conditions if n in by_name)

    return {n: sets[:1] for n, sets in chains(space).items() if not acts_by_default(by_name[n])}


def _worth_compiling(parameter: Parameter) -> list[str]:
    """Values of a setting other than its default, at most `NUMBERS` of a numeric one."""
    values = [v for v in parameter.values() if not parameter.is_absent(v)]
    is_scale = all(v.lstrip("-").isdigit() for v in values)
    return spread(values, NUMBERS if is_scale else len(values))


def _short(program: CompiledProgram) -> str:
    return program.fingerprint[:12]


def atlas_text(rows: Iterable[AtlasRow]) -> str:
    """Formats the text of a table's file: rows sorted, defaults omitted."""
    ordered = sorted(rows, key=lambda r: (*r.cell, r.kind, r.name, r.value))
    return "\n".join([HEADER, *(r.model_dump_json(exclude_defaults=True) for r in ordered)]) + "\n"


def main() -> None:
    """Entry point; tells on stderr what it does, and prints the table's path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", default=[], help="kind of model; may be repeated; default: all")
    parser.add_argument("--target", action="append", default=[], metavar="GPU", help="may be repeated")
    parser.add_argument("--gpus", action="append", default=[], type=int, metavar="N", help="may be repeated")
    parser.add_argument("--into", type=Path, default=Path("autotune/data/atlas"), metavar="FOLDER")
    parser.add_argument("--time-budget", type=parse_duration, metavar="2h", help="no compilation begins after that")
    arguments = parser.parse_args()
    began_s = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)

    plan = Plan(
        cells=planned_cells(arguments.kind, arguments.target, arguments.gpus),
        folder=arguments.into,
        cache_dir=default_cache_dir(caller_environment()) / "screen",
        limit_s=arguments.time_budget,
    )
    print(build_atlas(plan, say))


if __name__ == "__main__":
    main()
