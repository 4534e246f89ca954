"""Two builds as variants of one program: two interpreters, each with its own jax and jaxlib."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autotune.machine.environment import caller_environment, steering_settings
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.flags import FlagSet, reaches_out
from autotune.model.options import INTERPRETER
from autotune.model.spec import StudySpec
from autotune.programs.arrival import DEVICE_COUNT
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ProbeReport, probe_build
from autotune.study.ab import Variants, going_back, study_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One interpreter, what its packages take, and the caller's settings in their names."""

    python: str
    """Its path; links are kept, for they say which environment it is of."""
    report: ProbeReport
    settings: FlagSet

    def refuse_other(self, ran_on: str | None) -> None:
        """Refuses a program that ran on another jaxlib, by a StudyFileError; None where it is not known on which."""
        if ran_on not in (None, self.report.jaxlib):
            raise StudyFileError(
                f"under {self.python} the program must run on jaxlib {self.report.jaxlib} but it ran on jaxlib "
                f"{ran_on}: let it start no other interpreter; if the packages were changed since, give a new --name"
            )


class Builds(NamedTuple):
    """Both interpreters."""

    old: Build
    new: Build

    @property
    def names(self) -> tuple[str, str]:
        """Names of both in a sentence, with the interpreters where the versions are equal."""
        old, new = (build.report.build for build in self)
        return (old, new) if old != new else (f"{old} of {self.old.python}", f"{new} of {self.new.python}")

    @property
    def variants(self) -> Variants:
        """The old build is A, the new one B."""
        old, new = self
        back = going_back(old.settings, new.settings, **{INTERPRETER: old.python})
        of_name = dict(zip(self.names, self, strict=True))
        return Variants(
            names=self.names,
            going_back=back,
            refuse_other=lambda name, jaxlib: of_name[name].refuse_other(jaxlib),
        )


def find_build(python: str, platform: str, *, note: Callable[[str], None]) -> Build:
    """Asks an interpreter which settings its packages take, and translates the caller's; notes what changes.

    Raises:
        LaunchError: If it cannot be started, or has no jaxlib.
        SettingError: If the caller's XLA_FLAGS cannot be parsed.
    """
    if (found := shutil.which(python)) is None:
        raise LaunchError(f"a build must be an interpreter but {python} cannot be started; give the path of a Python")
    path = os.path.abspath(found)  # noqa: PTH100  # a Path follows links
    answer = probe_build(path, platform="cpu" if platform == "cpu" else "cuda")
    own = steering_settings(caller_environment())
    own = own.without(DEVICE_COUNT, *filter(reaches_out, own))
    settings = for_build(own, KnownSettings(answer), note=lambda text: note(f"for {answer.build}: {text}"))
    return Build(python=path, report=answer, settings=settings)


def study_of_builds(
    builds: Builds, words: Sequence[str], base: StudySpec, *, name: str, pairs: int | None
) -> StudySpec:
    """Makes a study of two builds by `base`; `words` follow the interpreter; StudyFileError for a bad name or word."""
    pythons = list(dict.fromkeys((builds.new.python, builds.old.python)))
    return study_of(
        base,
        builds.variants,
        name=name,
        command=[f"{{{INTERPRETER}}}", *words],
        options={INTERPRETER: pythons},
        settings=builds.new.settings,
        python=builds.new.python,
        pairs=pairs,
    )
