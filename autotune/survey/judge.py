"""Judges all settings in one cell with few compilations: what is thought to change nothing is compiled together.

Most settings change nothing in most cells, and what they do in one cell they mostly do in the next. So those that are
thought to act are compiled alone, value by value; all others together, in sets that each hold all of them, until every
value was in a set with the default's own program. A set with another program is taken apart until what changed it is
found (`autotune.compiler.company`); that is then compiled alone as well. So a wrong guess costs compilations, never a
wrong verdict, but for effects that hide each other, and those that two settings have only together if one of them is
thought to act; see `AtlasRow.tried`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.compiler import (
    CompiledProgram,
    Screener,
    TimeUp,
    chains,
    changes,
    find_canary,
    look_in_company,
    look_under,
    predict_step,
    spread,
)
from autotune.model import AutotuneError, FlagSet
from autotune.settings import AtlasRow, AtlasVerdict, Parameter, SearchSpace

MOST_CHANGES = 6
"""Clauses of a row on what changed; the first ones are on collectives."""

NUMBERS = 3
"""Values of a numeric setting that are compiled: the least, the greatest, and one between."""

PREDICTED_GROUPS = frozenset(
    {"async", "collective_matmul", "combining", "multi_node", "p2p", "pipelining", "scheduling", "loops"}
)
"""Groups of settings of collectives and scheduling: of others a model of kernels without a device says little."""

SHARING = frozenset({"xla_gpu_async_dot", "xla_gpu_experimental_parallel_async_compute_limit"})
"""Settings that run kernels beside kernels: the model lets each have the whole GPU, and would promise a quarter."""


@dataclass(slots=True)
class Found:
    """What is known of a cell so far.

    Attributes:
        awake: Setting that acts in company alone to that company.
        tried: How settings that change nothing were tried; see `AtlasRow.tried`.
    """

    awake: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tried: dict[str, str] = field(default_factory=dict)


class Judge:
    """Judges one cell.

    Args:
        screener: Compiles for it.
        space: All settings with the values to try.
        acts: Whether a setting is thought to act; a guess.
        is_thorough: Whether what changes nothing is looked at in company as thoroughly as by a screen.
        progress: Told how many of how many sets that are planned so far are compiled.
        is_over: Whether nothing more may be compiled.

    Raises:
        LaunchError: By any method, if the default itself does not compile, or flags do not act.
    """

    def __init__(
        self,
        screener: Screener,
        space: SearchSpace,
        *,
        acts: Callable[[str], bool],
        is_thorough: bool = False,
        progress: Callable[[int, int], None] = lambda done, of: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._screener = screener
        self._acts = acts
        self._is_thorough = is_thorough
        self._progress = progress
        self._is_over = is_over
        self._compiled: set[FlagSet] = set()
        self._chains = chains(space) if is_thorough else _needed_chains(space)
        self._groups = {p.name: p.group for p in space.parameters}
        self.values = {p.name: _worth_compiling(p) for p in space.parameters}
        self.reference = screener.reference()
        self._step_s = self._predicted(self.reference)
        find_canary(screener, self.reference)

    def settings(self, cell: Mapping[str, Any]) -> list[AtlasRow]:
        """The rows of all settings.

        Args:
            cell: Fields that name the cell.

        Raises:
            TimeUp: If not all could be compiled.
        """
        # JAX reads its own options while it lowers: together with others they would cost a lowering each time.
        alone = [n for n in self.values if self._acts(n) or n.startswith("jax_")]
        self._compile([FlagSet({n: v}) for n in alone for v in self.values[n]])
        silent = {
            n: v for n, v in self.values.items() if n not in alone or (not n.startswith("jax_") and self._is_silent(n))
        }
        found = Found(tried=dict.fromkeys(alone, "alone") | dict.fromkeys(silent, self._how))
        self._together(silent, found)
        self._compile([FlagSet({n: v}) for n in found.awake for v in self.values[n]])
        return [self._row(n, v, found, cell) for n, values in self.values.items() for v in values]

    def recipe(
        self, name: str, published: FlagSet, settings: FlagSet, dead: set[str], cell: Mapping[str, Any]
    ) -> AtlasRow:
        """The row of a published set.

        Args:
            name: Of the recipe.
            published: As it was published.
            settings: What the build takes of it.
            dead: Settings that change nothing in this cell, whatever their company.
            cell: Fields that name the cell.

        Raises:
            TimeUp: If it could not be compiled.
        """
        acting = FlagSet({n: v for n, v in settings.items() if n in self.values and n not in dead})
        rest = sorted(n for n in settings if n not in self.values)
        unseen = f"sets also what no compilation shows: {', '.join(rest)}" if rest else ""
        fields = {**cell, "kind": "recipe", "name": name, "value": str(published)}
        if not acting:
            return AtlasRow(**fields, verdict=AtlasVerdict.SAME, tried=self._how, message=unseen)
        self._compile([acting])
        return AtlasRow(**{**fields, "message": unseen, **self._judged(acting, predicts=self._predicts(acting))})

    def cell(self, cell: Mapping[str, Any]) -> AtlasRow:
        """The row of the cell itself: the default's program, and what judging cost."""
        results = [self._screener.result(s) for s in {FlagSet(), *self._compiled}]
        memory = self.reference.memory
        return AtlasRow(
            **cell,
            kind="cell",
            verdict=AtlasVerdict.DEFAULT,
            program=_short(self.reference),
            peak_bytes=memory.peak_bytes if memory else None,
            step_s=self._step_s,
            compiled=len(results),
            seconds=round(sum(r.duration_s for r in results), 1),
        )

    # ------------------------------------------------------------------ compiling

    @property
    def _how(self) -> str:
        return "company" if self._is_thorough else "together"

    def _compile(self, sets: list[FlagSet]) -> None:
        """Compiles some sets, several at once.

        Raises:
            TimeUp: If not all could be.
        """
        self._screener.compile_all(sets, is_over=self._is_over, progress=self._progress)
        self._compiled |= set(sets)
        if not all(self._screener.is_known(s) for s in sets):
            raise TimeUp

    def _program(self, settings: FlagSet) -> str | None:
        """Names a program, compiled now if need be.

        Raises:
            TimeUp: If it may not be compiled any more.
        """
        if not self._screener.is_known(settings):
            if self._is_over():
                raise TimeUp
            self._compiled.add(settings)
        return self._screener.fingerprint(settings)

    def _is_silent(self, name: str) -> bool:
        """Whether every value of a setting that was compiled alone gives the default's program."""
        programs = {self._screener.fingerprint(FlagSet({name: v})) for v in self.values[name]}
        return programs == {self.reference.fingerprint}

    def _together(self, silent: Mapping[str, list[str]], found: Found) -> None:
        """Looks which settings act after all, in sets of them, under each kernel choice.

        Raises:
            TimeUp: If nothing more may be compiled.
        """
        if self._is_thorough:
            live = {n: v for n, v in self.values.items() if n not in silent and not n.startswith("jax_")}
            companies = look_under(self._screener.choices, self._program, silent, live, self._chains, self._progress)
            for words, company in companies.items():
                found.awake |= self._needs(company.awake, words)
                if company.unsettled:
                    raise TimeUp
            return
        left = dict(silent)
        for words, forced in self._screener.choices.items():

            def under(settings: FlagSet, forced: FlagSet = forced) -> str | None:
                return self._program(settings.merge(forced))

            if under(FlagSet()) is None:
                continue
            company = look_in_company(under, left, {}, chains=self._chains, progress=self._progress, is_thorough=False)
            if company.unsettled:
                raise TimeUp
            found.awake |= self._needs(company.awake, words)
            left = {n: v for n, v in left.items() if n not in company.awake}

    def _needs(self, awake: Mapping[str, tuple[str, ...]], choice: str) -> dict[str, tuple[str, ...]]:
        """Settings to the company that they need, the kernels that a device may choose included."""
        is_usual = choice == next(iter(self._screener.choices))
        return {n: company if is_usual else (*company, choice) for n, company in awake.items()}

    # ------------------------------------------------------------------ rows

    def _row(self, name: str, value: str, found: Found, cell: Mapping[str, Any]) -> AtlasRow:
        fields = {**cell, "name": name, "value": value}
        if name in found.tried and name not in found.awake and found.tried[name] != "alone":
            return AtlasRow(**fields, verdict=AtlasVerdict.SAME, tried=found.tried[name])
        settings = FlagSet({name: value})
        judged = self._judged(settings, predicts=self._predicts(settings))
        needs = found.awake.get(name, ())
        if judged["verdict"] is AtlasVerdict.SAME and needs and self._is_silent(name):
            judged = {"verdict": AtlasVerdict.CHANGES, "needs": needs}
        return AtlasRow(**fields, **judged)

    def _judged(self, settings: FlagSet, *, predicts: bool) -> dict[str, Any]:
        """The fields of a row that a set's program tells."""
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
            "changes": changes_told(self.reference, program),
            "peak_bytes": memory.peak_bytes if memory else None,
            "predicted_change": predicted_change(self._predicted(program), self._step_s) if predicts else None,
        }

    def _predicts(self, settings: FlagSet) -> bool:
        """Whether a model without a device can say what a set is worth."""
        return all(self._groups[n] in PREDICTED_GROUPS and n not in SHARING for n in settings)

    def _predicted(self, program: CompiledProgram) -> float | None:
        return predicted_step_s(program, self._screener)


def predicted_step_s(program: CompiledProgram, screener: Screener) -> float | None:
    """Predicted seconds of a step of a cell's program; None if GPU or length of a loop are not known to the model."""
    job = screener.job
    if job.target is None:
        return None
    try:
        found = predict_step(program, job.target, job.topology)
    except AutotuneError:
        return None
    return None if found.unknown_loops else float(f"{found.step_s:.4g}")


def changes_told(default: CompiledProgram, program: CompiledProgram) -> tuple[str, ...]:
    """What the table says of the difference of two programs."""
    return tuple(changes(default, program))[:MOST_CHANGES]


def predicted_change(step_s: float | None, default_s: float | None) -> float | None:
    """One predicted step time over another, minus one, as the table has it; None where either is not known."""
    return None if step_s is None or default_s is None else round(step_s / default_s - 1.0, 4)


def silent_settings(rows: Iterable[AtlasRow]) -> set[str]:
    """Settings of which no row says anything but ``same``."""
    verdicts: dict[str, set[AtlasVerdict]] = {}
    for row in rows:
        if row.kind == "setting":
            verdicts.setdefault(row.name, set()).add(row.verdict)
    return {n for n, found in verdicts.items() if found == {AtlasVerdict.SAME}}


def _needed_chains(space: SearchSpace) -> dict[str, list[FlagSet]]:
    """One set for each setting whose conditions the default does not fulfil, under which they are."""
    by_name = {p.name: p for p in space.parameters}

    def is_awake(parameter: Parameter) -> bool:
        conditions = (parameter.condition or {}).items()
        return all(any(by_name[n].is_absent(v) for v in values) for n, values in conditions if n in by_name)

    return {n: sets[:1] for n, sets in chains(space).items() if not is_awake(by_name[n])}


def _worth_compiling(parameter: Parameter) -> list[str]:
    """Values of a setting other than its default; of numbers so many that a trend is seen."""
    values = [v for v in parameter.values() if not parameter.is_absent(v)]
    is_scale = all(v.lstrip("-").isdigit() for v in values)
    return spread(values, NUMBERS if is_scale else len(values))


def _short(program: CompiledProgram) -> str:
    return program.fingerprint[:12]
