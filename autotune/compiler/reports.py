"""What a screen says: of values, settings, sets, and of a study as a whole."""

from __future__ import annotations

from enum import StrEnum

from autotune.compiler.canary import Canary
from autotune.model import Record, Settings


class Effect(StrEnum):
    """What a setting does here.

    ``live``: some value changes the program. ``dead``: none does, alone or in company (see
    `autotune.compiler.company`), whichever kernels a device's autotuner may choose. ``measure``: read at run time
    or by the on-device autotuner, so that equal programs prove nothing. ``fails``: no value changes the program, and
    some do not compile.
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
        company: Those among which it was seen to be live.
        under: The kernel choice under which alone it is live; empty if that is the compiler's own.
    """

    name: str
    effect: Effect
    stage: str
    values: tuple[ValueReport, ...] = ()
    together: bool = False
    company: tuple[str, ...] = ()
    under: str = ""


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
        choices: Kernel choices under which equal programs were found equal.
        company_rows: Assignments of many settings that were compiled to find what acts in company.
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
    choices: tuple[str, ...] = ()
    company_rows: int = 0

    def of_effect(self, effect: Effect) -> list[SettingReport]:
        """The settings with one effect."""
        return [s for s in self.settings if s.effect is effect]
