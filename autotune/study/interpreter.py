"""The interpreter under which a study's program runs: the build that is asked must be the build that is measured.

A `command` may be a script, a launcher (``uv run``, ``torchrun``, ``mpirun``), or anything else that ends up in an
interpreter. Which one it is, only a run tells: so it is started once, as a trial would be, and ended as soon as one of
its processes has loaded jaxlib. The answer is kept for the next call. Where that may be out of date, or was never
seen, the reference has the last word: what it ran on must be what was asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.child import StepReader
from autotune.machine import caller_environment, child_environment, default_cache_dir, driver_python, replace_file
from autotune.model import (
    FlagSet,
    LaunchError,
    StudyFileError,
    StudySpec,
    WorkloadFacts,
    format_seconds,
    redact_command,
)
from autotune.workers import FirstLook, look_at

LOOK_LIMIT_S = 600.0
"""Longest time until a process of the command has loaded jaxlib; a look of `tune` may take as long."""

ENOUGH_STEPS = 8
"""Steps by which jaxlib would have been seen, were the process that makes them to be seen at all."""

TELL_EVERY_S = 10.0
STEERING = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "UV_PYTHON", "UV_PROJECT_ENVIRONMENT")
"""Variables by which a launcher may choose another interpreter: an answer holds for these values only."""


def program_python(spec: StudySpec, study_dir: Path, *, note: Callable[[str], None] | None) -> str:
    """The interpreter whose packages the workload uses.

    That is the one which the study names, or which its command begins with; of any other command the one that was seen
    to load jaxlib when it was run once, now or before.

    Args:
        spec: The study.
        study_dir: Folder of the study file, in which the command runs.
        note: Told how far a run is; None to start nothing.

    Returns:
        That of autotune where the study has no command, or it was not seen under which one that runs.

    Raises:
        StudyFileError: If the study names one that is not there.
        LaunchError: If the command cannot be started.
    """
    command = spec.workload.command
    if (named := spec.workload.python) is not None:
        if (found := _there(named, study_dir) or shutil.which(named)) is None:
            raise StudyFileError(f"`workload.python` must be an interpreter that can be started but got {named!r}")
        return found
    if command is None:
        return driver_python()
    if (direct := direct_python(command, study_dir)) is not None:
        return direct
    return _seen(spec, study_dir, note) or driver_python()


def direct_python(command: Sequence[str], folder: Path) -> str | None:
    """The interpreter that a command begins with, if it does and that is there.

    Args:
        command: A program and its arguments.
        folder: In which it runs.
    """
    return _there(command[0], folder) if re.fullmatch(r"python[\d.]*", Path(command[0]).name) else None


def refuse_other_build(asked: str, python: str, spec: StudySpec, facts: WorkloadFacts | None) -> None:
    """Refuses to go on where the reference ran on another jaxlib than the one whose settings were checked.

    Args:
        asked: Version of the jaxlib that was asked.
        python: Its interpreter.
        spec: The study.
        facts: What the reference told; one that told no version refutes nothing.

    Raises:
        StudyFileError: If they are not the same.
    """
    ran_on = (getattr(facts, "versions", None) or {}).get("jaxlib")
    if spec.workload.command is None or ran_on is None or ran_on == asked:
        return
    packages = getattr(facts, "packages", None)
    where = f" in {packages}" if packages else ""
    mended = _interpreter_of(packages)
    raise StudyFileError(
        f"the settings of a study must be those of the build that it runs on, but jaxlib {asked} of {python} was asked "
        f"and the program ran on jaxlib {ran_on}{where}; name the interpreter that it runs under in the study file: "
        f'[workload] python = "{mended or "/path/to/python"}"'
    )


def _there(name: str, folder: Path) -> str | None:
    """An interpreter by its name: one with a slash is found from the folder in which the command runs."""
    return shutil.which(str(folder / Path(name).expanduser()) if "/" in name else name)


def _interpreter_of(packages: str | None) -> str | None:
    """The interpreter of a virtual environment, by its folder of packages."""
    above = Path(packages).expanduser().parents if packages else ()
    found = [p for p in above[2:3] and sorted((above[2] / "bin").glob("python*")) if p.name in ("python", "python3")]
    return str(found[0]) if found else None


# ---------------------------------------------------------------------- by a run


def _seen(spec: StudySpec, study_dir: Path, note: Callable[[str], None] | None) -> str | None:
    """The interpreter that loaded jaxlib when the command ran once; None if none was seen to."""
    file = _kept_in(spec, study_dir)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = str(json.loads(file.read_text("utf-8"))["python"])
        if Path(kept).exists():
            return kept
    if note is None:
        return None
    command = shlex.join(redact_command(spec.under(FlagSet()).workload.command or ()))
    note(f"running the command once, to see under which interpreter it runs: {command}")
    look = _look(spec, study_dir, note)
    found = next((p for p in look.pythons if Path(p).exists()), None)
    if found is None:
        ended = f"it ended with status {look.status}" if look.status is not None else "it runs"
        note(
            f"it could not be seen under which interpreter the command runs: no process below it loaded jaxlib in "
            f"{format_seconds(look.took_s)}, {ended}. That of autotune is asked which settings there are; if the "
            'program runs under another one, name it: [workload] python = "/path/to/python"'
        )
        return None
    note(f"the command runs under {found}, with jaxlib {look.pythons[found] or 'of unknown version'}")
    with contextlib.suppress(OSError):  # a read-only home costs the next call another look
        replace_file(file, json.dumps({"python": found}))
    return found


def _look(spec: StudySpec, study_dir: Path, note: Callable[[str], None]) -> FirstLook:
    """Runs the command until one of its processes has loaded jaxlib, or has made steps without.

    Raises:
        LaunchError: If it cannot be started.
    """
    under, device = spec.under(FlagSet()).workload, spec.device
    environment = child_environment(
        caller_environment(), FlagSet(), platform_name=device.platform,
        virtual_devices=device.count if device.platform == "cpu" else None,
    )  # fmt: skip
    told_s, read = 0.0, spec.workload.read
    reader = StepReader(read.rules() | {"tokens_per_step": 1}) if read is not None and read.file is None else None
    seen = steps = 0

    def is_enough(look: FirstLook) -> bool:
        nonlocal told_s, seen, steps
        if look.took_s - told_s >= TELL_EVERY_S:
            told_s = look.took_s
            note(f"{format_seconds(look.took_s)}: no process of it has loaded jaxlib yet")
        if reader is not None:
            steps += sum(reader.read(line, at_s) is not None for at_s, line in look.lines[seen:])
            seen = len(look.lines)
        return bool(look.pythons) or steps >= ENOUGH_STEPS

    try:
        return look_at(
            under.arguments("{folder}"), environment, cwd=study_dir, limit_s=LOOK_LIMIT_S,
            is_enough=is_enough,
        )  # fmt: skip
    except LaunchError as error:
        raise LaunchError(f"`workload.command`: {error}") from error


def _kept_in(spec: StudySpec, study_dir: Path) -> Path:
    """Where the answer of a run is kept: named by the command, the files that it names, and what chooses for it."""
    under, base = spec.under(FlagSet()).workload, caller_environment()
    files: list[Any] = []
    for word in under.command or ():
        with contextlib.suppress(OSError, ValueError):
            if (study_dir / word).is_file():
                status = (study_dir / word).stat()
                files.append((word, status.st_size, status.st_mtime_ns))
    variables = {name: base.get(name) for name in STEERING}
    asked = [under.arguments("{folder}"), str(study_dir), spec.device.platform, variables, files]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    return default_cache_dir(base) / f"interpreter-{digest}.json"
