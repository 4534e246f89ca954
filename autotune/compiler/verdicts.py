"""Which settings change this program, which do not, and which only a measurement can judge."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.compiler.canary import find_canary
from autotune.compiler.choices import kernel_choices, look_under
from autotune.compiler.company import TimeUp
from autotune.compiler.compiler import Compiler
from autotune.compiler.program import CompiledProgram, CompileResult, changes
from autotune.compiler.reports import Effect, ScreenReport, SetReport, SettingReport, ValueReport
from autotune.compiler.targets import memory_fraction
from autotune.model import FlagSet, LaunchError
from autotune.settings import Catalog, Stage

DEFAULT_MEMORY_FRACTION = 0.75
"""Share of the device memory that JAX's client takes if nothing is set (jax/_src/xla_bridge.py)."""


class Screener:
    """Compiles what a study could try, and judges it.

    Args:
        compiler: Compiles for the study's workload and cluster.
        baseline: The reference's settings.
        catalog: Says at which stage a setting acts.
    """

    def __init__(self, compiler: Compiler, *, baseline: FlagSet, catalog: Catalog) -> None:
        self.job = compiler.job
        self.baseline = baseline
        self._compiler = compiler
        self._catalog = catalog
        self._results: dict[FlagSet, CompileResult] = {}
        self.choices = kernel_choices(baseline, is_gpu=self.job.target is not None)

    def run(
        self,
        domains: Mapping[str, Sequence[str]],
        named: Mapping[str, FlagSet],
        *,
        chains: Mapping[str, Sequence[FlagSet]] | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> ScreenReport:
        """Screens named sets, settings one at a time, then in company those that change nothing alone.

        Args:
            domains: Setting to the values that are tried.
            named: Name to set, without the baseline.
            chains: Setting to the sets under which its conditions are true.
            progress: Told how many of how many sets that are planned so far are compiled.
            is_over: Asked before each compilation whether the time is up; what is not compiled then is skipped.

        Raises:
            LaunchError: If the reference itself does not compile, or flags do not act.
        """
        reference = self.reference()
        canary = find_canary(self, reference)
        judged = {n: v for n, v in domains.items() if self.stage(n) is Stage.PROGRAM}
        # What decides the autotuner is always measured, and may be the company of others.
        company = {n: v for n, v in domains.items() if self.stage(n) is Stage.AUTOTUNER}
        wanted = self.wanted(domains, named)
        self.compile_all(wanted, is_over=is_over, progress=progress)
        skipped = {n for n, values in judged.items() if not all(self.is_known(FlagSet({n: v})) for v in values)}
        found = [self._setting(n, tuple(v), reference) for n, v in domains.items() if n not in skipped]

        def row_done(done: int, of: int) -> None:
            progress(len(wanted) + done, len(wanted) + of)

        found, unsettled, rows = self._in_company(found, company, chains or {}, is_over, row_done)
        skipped |= unsettled
        return ScreenReport(
            target=self.target_name,
            topology=str(self.job.topology),
            versions=reference.versions,
            reference=self._set_report("reference", FlagSet(), reference, {}),
            settings=tuple(found),
            sets=tuple(self._sets({n: s for n, s in named.items() if self.is_known(s)}, reference)),
            limit_bytes=self.limit_bytes(self.baseline),
            compiled_count=sum(not r.from_cache for r in self._results.values()),
            cached_count=sum(r.from_cache for r in self._results.values()),
            duration_s=sum(r.duration_s for r in self._results.values() if not r.from_cache),
            skipped=(*sorted(skipped), *(n for n, s in named.items() if not self.is_known(s))),
            canary=canary,
            choices=tuple(filter(None, self.choices)),
            company_rows=rows,
            **self._target_fields(),
        )

    def wanted(self, domains: Mapping[str, Sequence[str]], named: Mapping[str, FlagSet]) -> list[FlagSet]:
        """The sets that a screen compiles first, what matters most before the rest; see `run`."""
        compiled = (Stage.PROGRAM, Stage.AUTOTUNER)
        return by_promise({n: v for n, v in domains.items() if self.stage(n) in compiled}, named)

    def compile_all(
        self,
        wanted: Sequence[FlagSet],
        *,
        is_over: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> None:
        """Compiles some sets, several at once where the compiler can; what is known is not compiled again.

        Args:
            wanted: The sets, without the baseline; what matters most first.
            is_over: Asked before each compilation whether the time is up.
            progress: Told how many of them are compiled.
        """
        missing = [s for s in dict.fromkeys(map(self._as_compiled, wanted)) if s not in self._results]
        done = len(wanted) - len(missing)
        if not missing or is_over():
            return
        with contextlib.closing(self._compiler.compile(missing)) as results:
            for result in results:
                self._results[result.settings] = result
                done += 1
                progress(done, len(wanted))
                if is_over():
                    return

    def _target_fields(self) -> dict[str, Any]:
        gpu = self.job.target
        return {"target_digest": gpu.digest, "target_asked": gpu.asked, "target_assumed": gpu.assumed} if gpu else {}

    @property
    def target_name(self) -> str:
        """Name of the target; ``cpu`` without one."""
        return self.job.target.name if self.job.target else "cpu"

    def abort(self) -> None:
        """Stops for good what is being compiled; from any thread."""
        self._compiler.abort()

    def resume(self) -> None:
        """Compiles again after `abort`; nothing may be under way."""
        self._compiler.resume()

    def keep_to(self, processors: Iterable[int]) -> None:
        """Has what is compiled from now on keep to some processors; to all, if there are none among them."""
        self._compiler.kept_to = frozenset(processors)

    def stage(self, name: str) -> Stage:
        """Where a setting acts; one that the catalogue does not know must be measured."""
        setting = self._catalog.get(name)
        return setting.stage if setting is not None else Stage.RUNTIME

    def limit_bytes(self, settings: Mapping[str, str]) -> int | None:
        """Device memory that JAX would take under some settings."""
        if self.job.target is None:
            return None
        fraction = memory_fraction(settings)
        return int(self.job.target.memory_bytes * (DEFAULT_MEMORY_FRACTION if fraction is None else fraction))

    def program_key(self, settings: FlagSet) -> str | None:
        """Equal for two sets that one measurement serves: same program, same settings that are read at run time.

        None if the set does not compile here, or holds a setting that decides the on-device autotuner.

        Args:
            settings: The set, without the baseline.
        """
        rest = self._to_measure(self.baseline.merge(settings))
        if any(self.stage(n) is Stage.AUTOTUNER for n in rest):
            return None
        programs = [self.fingerprint(settings.merge(forced)) for forced in self.choices.values()]
        return None if None in programs else "-".join([*map(str, programs), rest.digest])

    def _is_same(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether two sets have one program under every kernel choice; each further one is compiled only if need be."""
        forced = self.choices.values()
        return all(self.fingerprint(one.merge(f)) == self.fingerprint(other.merge(f)) for f in forced)

    def fingerprint(self, settings: FlagSet) -> str | None:
        """Names a set's program (without the baseline); None if it does not compile."""
        program = self.result(settings).program
        return program.fingerprint if program is not None else None

    def result(self, settings: FlagSet) -> CompileResult:
        """What became of a set (without the baseline); compiled now if it was not yet."""
        compiled = self._as_compiled(settings)
        if compiled not in self._results:
            for result in self._compiler.compile([compiled]):
                self._results[result.settings] = result
        return self._results[compiled]

    def forget(self, sets: Sequence[FlagSet]) -> None:
        """Keeps nothing of what became of some sets (without the baseline), in the cache neither."""
        compiled = [self._as_compiled(s) for s in sets]
        for settings in compiled:
            self._results.pop(settings, None)
        self._compiler.forget(compiled)

    def fits(self, settings: FlagSet) -> bool | None:
        """Whether a set's step fits into device memory; None if it does not compile or that is not known."""
        program = self.result(settings).program
        return self._fits(program, settings) if program is not None else None

    def is_known(self, settings: FlagSet) -> bool:
        """Whether a set (without the baseline) was compiled already."""
        return self._as_compiled(settings) in self._results

    def _as_compiled(self, settings: FlagSet) -> FlagSet:
        """The set as the compiler gets it: without variables of libraries that it does not call."""
        merged = self.baseline.merge(settings)
        return merged.without(*(n for n in merged if n.startswith(("NCCL_", "CUDA_"))))

    def reference(self) -> CompiledProgram:
        """The reference's program.

        Raises:
            LaunchError: If it does not compile.
        """
        result = self.result(FlagSet())
        if result.program is None:
            failure = result.failure
            words = "\n  ".join([failure.message, *failure.last_lines[:4]]) if failure else ""
            raise LaunchError(f"the reference (baseline settings: {self.baseline}) must compile but did not: {words}")
        return result.program

    def _setting(self, name: str, values: tuple[str, ...], reference: CompiledProgram) -> SettingReport:
        stage = self.stage(name)
        if stage is not Stage.PROGRAM:
            return SettingReport(name=name, effect=Effect.MEASURE, stage=stage)
        reports = tuple(self._value(name, value, reference) for value in values)
        effect = Effect.DEAD
        if any(r.is_live for r in reports):
            effect = Effect.LIVE
        elif any(r.message for r in reports):
            effect = Effect.FAILS
        return SettingReport(name=name, effect=effect, stage=stage, values=reports)

    def _value(self, name: str, value: str, reference: CompiledProgram) -> ValueReport:
        found = self._compiled(FlagSet({name: value}), reference)
        is_live = found["fingerprint"] not in (None, reference.fingerprint)
        return ValueReport(value=value, is_live=is_live, **found)

    def _compiled(self, settings: FlagSet, reference: CompiledProgram) -> dict[str, Any]:
        """The fields of a `CompiledReport` on a set."""
        result = self.result(settings)
        if result.program is None:
            assert result.failure is not None
            message = f"{result.failure.kind}: {result.failure.message}"
            return {"fingerprint": None, "message": message, "compile_s": result.duration_s}
        program = result.program
        return {
            "fingerprint": program.fingerprint,
            "changes": tuple(changes(reference, program)),
            "peak_bytes": program.memory.peak_bytes if program.memory else None,
            "fits": self._fits(program, settings),
            "compile_s": program.compile_s,
        }

    def _fits(self, program: CompiledProgram, settings: FlagSet) -> bool | None:
        limit = self.limit_bytes(self.baseline.merge(settings))
        return program.memory.peak_bytes <= limit if limit is not None and program.memory else None

    def _in_company(
        self,
        settings: Sequence[SettingReport],
        others: Mapping[str, Sequence[str]],
        chains: Mapping[str, Sequence[FlagSet]],
        is_over: Callable[[], bool],
        progress: Callable[[int, int], None],
    ) -> tuple[list[SettingReport], set[str], int]:
        """Settings that are dead alone, tried in company under every kernel choice: what acts there is not dead.

        Returns:
            The settings, the names of those that nothing is said of because the time was up, and the rows compiled.
        """

        def program(candidate: FlagSet) -> str | None:
            if not self.is_known(candidate) and is_over():
                raise TimeUp
            return self.fingerprint(candidate)

        dead = {s.name: [v.value for v in s.values if not v.message] for s in settings if s.effect is Effect.DEAD}
        live = {s.name: [v.value for v in s.values] for s in settings if s.name not in dead} | dict(others)
        found = look_under(self.choices, program, dead, live, chains, progress)
        own = next(iter(self.choices))
        live_now = {
            name: {"effect": Effect.LIVE, "together": bool(a), "company": a, "under": words if words != own else ""}
            for words, company in found.items()
            for name, a in company.awake.items()
        }
        unsettled = {n for company in found.values() for n in company.unsettled}
        left = [s.model_copy(update=live_now.get(s.name)) for s in settings if s.name not in unsettled]
        return left, unsettled, sum(company.rows for company in found.values())

    def _sets(self, named: Mapping[str, FlagSet], reference: CompiledProgram) -> Iterator[SetReport]:
        seen = {(reference.fingerprint, self._to_measure(self.baseline)): ("reference", FlagSet())}
        for name, settings in named.items():
            yield self._set_report(name, settings, reference, seen)

    def _to_measure(self, settings: FlagSet) -> FlagSet:
        """The part of a set that a compilation says nothing of."""
        return FlagSet({n: v for n, v in settings.items() if self.stage(n) is not Stage.PROGRAM})

    def _set_report(
        self,
        name: str,
        settings: FlagSet,
        reference: CompiledProgram,
        seen: dict[tuple[str, FlagSet], tuple[str, FlagSet]],
    ) -> SetReport:
        found, rest = self._compiled(settings, reference), self._to_measure(self.baseline.merge(settings))
        same_as = None
        if found["fingerprint"] is not None:
            first, other = seen.setdefault((found["fingerprint"], rest), (name, settings))
            same_as = first if first != name and self._is_same(settings, other) else None
        return SetReport(name=name, settings=settings, same_as=same_as, to_measure=tuple(rest), **found)


def by_promise(domains: Mapping[str, Sequence[str]], named: Mapping[str, FlagSet]) -> list[FlagSet]:
    """Named sets, then each value of each setting: first those settings that most named sets hold.

    Args:
        domains: Setting to its values.
        named: Name to set.
    """
    held = Counter(name for settings in named.values() for name in settings)
    names = sorted(domains, key=lambda name: -held[name])
    return [*named.values(), *(FlagSet({n: v}) for n in names for v in domains[n])]
