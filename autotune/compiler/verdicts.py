"""Which settings change this program, which do not, and which only a measurement can judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from autotune.compiler.canary import Canary, find_canary
from autotune.compiler.compiler import Compiler, of_worker
from autotune.compiler.program import CompiledProgram, CompileResult, changes
from autotune.model import FlagSet, LaunchError, Record, Settings
from autotune.settings import Catalog, Stage

DEFAULT_MEMORY_FRACTION = 0.75
"""Share of the device memory that JAX's client takes if nothing is set (jax/_src/xla_bridge.py)."""
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


class Effect(StrEnum):
    """What a setting does here.

    ``live``: some value changes the program. ``dead``: none does, alone or among the live ones. ``measure``:
    read at run time or by the on-device autotuner, so that equal programs prove nothing. ``fails``: no value
    of it compiles.
    """

    LIVE = "live"
    DEAD = "dead"
    MEASURE = "measure"
    FAILS = "fails"


class CompiledReport(Record):
    """What compiling alone says of one set.

    Attributes:
        fingerprint: Names its program; None if it does not compile.
        changes: What differs from the reference's program, in words.
        message: The compiler's words if it failed.
        peak_bytes: Device memory that the step needs.
        fits: Whether the step fits in device memory; None if not known.
        compile_s: Seconds of compiling; of a failure, until it ended.
    """

    fingerprint: str | None = None
    changes: tuple[str, ...] = ()
    message: str = ""
    peak_bytes: int | None = None
    fits: bool | None = None
    compile_s: float = 0.0


class ValueReport(CompiledReport):
    """One value of a setting on top of the reference.

    Attributes:
        is_live: Whether its program differs from the reference's.
    """

    value: str
    is_live: bool


class SettingReport(Record):
    """One setting with all its values.

    Attributes:
        together: Live only together with other settings.
    """

    name: str
    effect: Effect
    stage: str
    values: tuple[ValueReport, ...] = ()
    together: bool = False


class SetReport(CompiledReport):
    """One named set: a recipe, or one that the study proposes.

    Attributes:
        same_as: Earlier set with the same program and nothing else to measure; None if there is none.
        to_measure: Settings of it that no compilation can judge.
    """

    name: str
    settings: Settings
    same_as: str | None = None
    to_measure: tuple[str, ...] = ()


class ScreenReport(Record):
    """All that compiling alone says of a study on one cluster.

    Attributes:
        limit_bytes: Device memory at the study's memory fraction; None for the CPU.
        compiled_count: Programs compiled now, and `cached_count` taken from the cache.
        skipped: Settings and sets that nothing is said of, for the time was up.
        canary: The set that was seen to change the program before any was called dead; None in a report of before.
        target_digest: Names what the compiler was told of the GPU; empty for the CPU.
        target_asked: Fields of that which the GPU or installed packages told; `target_assumed`, a table.
    """

    target: str
    topology: str
    versions: dict[str, str]
    reference: SetReport
    settings: tuple[SettingReport, ...]
    sets: tuple[SetReport, ...]
    limit_bytes: int | None
    compiled_count: int
    cached_count: int
    duration_s: float
    skipped: tuple[str, ...] = ()
    canary: Canary | None = None
    target_digest: str = ""
    target_asked: tuple[str, ...] = ()
    target_assumed: tuple[str, ...] = ()

    def of_effect(self, effect: Effect) -> list[SettingReport]:
        """The settings with one effect."""
        return [s for s in self.settings if s.effect is effect]


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

    def run(
        self,
        domains: Mapping[str, Sequence[str]],
        named: Mapping[str, FlagSet],
        *,
        progress: Callable[[int, int], None] = lambda done, of: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> ScreenReport:
        """Screens named sets, settings one at a time, then those without effect among the live ones.

        Args:
            domains: Setting to the values that are tried.
            named: Name to set, without the baseline.
            progress: Told how many of how many programs are compiled.
            is_over: Asked before each compilation whether the time is up; what is not compiled then is skipped.

        Raises:
            LaunchError: If the reference itself does not compile, or flags do not act.
        """
        reference = self.reference()
        canary = find_canary(self, reference)
        judged = {n: v for n, v in domains.items() if self.stage(n) is Stage.PROGRAM}
        wanted = [*named.values(), *(FlagSet({n: v}) for n, values in judged.items() for v in values)]
        # Sets that differ in what JAX itself reads need workers of their own: one after the other, not in turns.
        wanted.sort(key=lambda s: str(of_worker(self.baseline.merge(s))))
        for i, settings in enumerate(wanted):
            if not self._is_known(settings) and is_over():
                break
            self.result(settings)
            progress(i + 1, len(wanted))
        skipped = {n for n, values in judged.items() if not all(self._is_known(FlagSet({n: v})) for v in values)}
        found = [self._setting(n, tuple(v), reference) for n, v in domains.items() if n not in skipped]
        found, alone = self._again_together(found, is_over)
        skipped |= alone
        return ScreenReport(
            target=self.target_name,
            topology=str(self.job.topology),
            versions=reference.versions,
            reference=self._set_report("reference", FlagSet(), reference, {}),
            settings=tuple(found),
            sets=tuple(self._sets({n: s for n, s in named.items() if self._is_known(s)}, reference)),
            limit_bytes=self.limit_bytes(self.baseline),
            compiled_count=sum(not r.from_cache for r in self._results.values()),
            cached_count=sum(r.from_cache for r in self._results.values()),
            duration_s=sum(r.duration_s for r in self._results.values() if not r.from_cache),
            skipped=(*sorted(skipped), *(n for n, s in named.items() if not self._is_known(s))),
            canary=canary,
            **self._target_fields(),
        )

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

    def stage(self, name: str) -> Stage:
        """Where a setting acts; one that the catalogue does not know must be measured."""
        setting = self._catalog.get(name)
        return setting.stage if setting is not None else Stage.RUNTIME

    def is_all_program(self, settings: FlagSet) -> bool:
        """Whether a compilation says all of what a set does: nothing of it is read later."""
        return all(self.stage(n) is Stage.PROGRAM for n in settings)

    def limit_bytes(self, settings: Mapping[str, str]) -> int | None:
        """Device memory that JAX would take under some settings."""
        if self.job.target is None:
            return None
        named = next((settings[n] for n in _FRACTIONS if n in settings), None)
        try:
            fraction = float(named) if named is not None else DEFAULT_MEMORY_FRACTION
        except ValueError:  # the client will refuse it; not the compiler's business
            fraction = DEFAULT_MEMORY_FRACTION
        return int(self.job.target.memory_bytes * min(fraction, 1.0))

    def program_key(self, settings: FlagSet) -> str | None:
        """Equal for two sets that one measurement serves: same program, same settings that are read at run time.

        None if the set does not compile here, or holds a setting that decides the on-device autotuner.
        """
        program = self.result(settings).program
        rest = self._to_measure(self.baseline.merge(settings))
        if program is None or any(self.stage(n) is Stage.AUTOTUNER for n in rest):
            return None
        return f"{program.fingerprint}-{rest.digest}"

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

    def _is_known(self, settings: FlagSet) -> bool:
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
        elif reports and all(r.message for r in reports):
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

    def _again_together(
        self, settings: Sequence[SettingReport], is_over: Callable[[], bool]
    ) -> tuple[list[SettingReport], set[str]]:
        """Settings that are dead alone, tried on top of all live ones: what acts only in company is not dead.

        Many are tried at once; only where their program differs are they taken apart.

        Returns:
            The settings, and the names of those that nothing is said of because the time was up.
        """
        context = self._live_context(settings)
        dead = {s.name: [v.value for v in s.values if not v.message] for s in settings if s.effect is Effect.DEAD}
        awake: set[str] = set()
        if context and dead:
            for round_ in range(max(len(v) for v in dead.values())):
                if is_over():
                    return [s for s in settings if s.name not in dead or s.name in awake], set(dead) - awake
                tried = {n: v[round_] for n, v in dead.items() if round_ < len(v) and n not in awake}
                awake |= self._awake(context, tried)
        live = {"effect": Effect.LIVE, "together": True}
        return [s.model_copy(update=live) if s.name in awake else s for s in settings], set()

    def _live_context(self, settings: Sequence[SettingReport]) -> FlagSet:
        """The first live value of every live setting, as far as they compile together."""
        context = FlagSet()
        for setting in settings:
            live = next((v.value for v in setting.values if v.is_live), None)
            if live is not None:
                context = context.merge({setting.name: live})
        while context and self.result(context).program is None:
            context = context.without(list(context)[-1])
        return context

    def _awake(self, context: FlagSet, tried: Mapping[str, str]) -> set[str]:
        """Which of some settings change the program of a context; found by halving."""
        if not tried:
            return set()
        base, together = self.result(context).program, self.result(context.merge(tried)).program
        if base is not None and together is not None and base.fingerprint == together.fingerprint:
            return set()
        if len(tried) == 1:
            return set(tried)  # a set that fails only in company is not without effect either
        items = list(tried.items())
        half = len(items) // 2
        return self._awake(context, dict(items[:half])) | self._awake(context, dict(items[half:]))

    def _sets(self, named: Mapping[str, FlagSet], reference: CompiledProgram) -> Iterator[SetReport]:
        seen: dict[tuple[str, FlagSet], str] = {(reference.fingerprint, self._to_measure(self.baseline)): "reference"}
        for name, settings in named.items():
            yield self._set_report(name, settings, reference, seen)

    def _to_measure(self, settings: FlagSet) -> FlagSet:
        """The part of a set that a compilation says nothing of."""
        return FlagSet({n: v for n, v in settings.items() if self.stage(n) is not Stage.PROGRAM})

    def _set_report(
        self, name: str, settings: FlagSet, reference: CompiledProgram, seen: dict[tuple[str, FlagSet], str]
    ) -> SetReport:
        found, rest = self._compiled(settings, reference), self._to_measure(self.baseline.merge(settings))
        same_as = None
        if found["fingerprint"] is not None:
            first = seen.setdefault((found["fingerprint"], rest), name)
            same_as = first if first != name else None
        return SetReport(name=name, settings=settings, same_as=same_as, to_measure=tuple(rest), **found)
