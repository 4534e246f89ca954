"""Variants of a program, as a comparison runs them: command, environment, interpreter, revision."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.machine.environment import STEERING, caller_environment, steering_settings
from autotune.machine.files import remove_tree
from autotune.model.errors import StudyFileError
from autotune.model.files import Texts, plain_text
from autotune.model.flags import FlagSet, is_variable, reaches_out
from autotune.model.spec import MOST_BYTES
from autotune.model.texts import Note
from autotune.programs.arrival import DEVICE_COUNT
from autotune.settings.assignments import UNREAD, read_assignments
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ProbeReport, probe_build

# Packages of the worktree come before editable ones of the caller's folder.
ENTERING = """cd {tree} || exit
export PYTHONPATH="$PWD/src:$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
cd {below} || exit
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side of a comparison: what is run, with which variables and settings."""

    command: Texts
    settings: FlagSet = field(default_factory=FlagSet)  # those of the caller included
    variables: Mapping[str, str] = field(default_factory=dict)  # others, added to the caller's
    name: str = ""
    entering: str = ""  # lines of a shell before it, of a worktree
    build: ProbeReport | None = None  # None where the command says what it runs on

    @property
    def body(self) -> str:
        """The shell commands that run it."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return "\n".join([*lines, f"{self.entering}exec {shlex.join(self.command)}", ""])

    @property
    def first_command(self) -> Texts:
        """The command of the first look at it."""
        is_plain = not (self.variables or self.entering)
        return self.command if is_plain else ("/bin/sh", "-c", self.body)

    def refuse_other(self, ran_on: str | None) -> None:
        """Refuses a program that ran on another jaxlib, by a StudyFileError; None is not known."""
        if self.build and ran_on not in (None, self.build.jaxlib):
            raise StudyFileError(
                f"under {self.command[0]} the program must run on jaxlib {self.build.jaxlib} but "
                f"it ran on jaxlib {ran_on}: let it start no other interpreter; if the packages "
                "were changed since, give a new --name"
            )


def variant_of(command: Sequence[str], given: Sequence[str], file: Path | None) -> Variant:
    """Returns a variant in the caller's environment, with variables of a file, then those given."""
    try:
        assigned = read_assignments(plain_text(file, most=MOST_BYTES)) if file else []
    except (OSError, ValueError) as error:
        raise StudyFileError(
            f"{file} must be a text file that sets variables but cannot be read: {error}"
        ) from error
    variables = {name: value for name, value in assigned if name not in UNREAD}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise StudyFileError(f"a variable must be NAME=VALUE but is {text!r}")
        variables[name] = value
    steering = [name for name in variables if STEERING.fullmatch(name) and is_variable(name)]
    settings = steering_settings(caller_environment())
    settings = settings.without(DEVICE_COUNT, *filter(reaches_out, settings))
    settings = settings.merge(FlagSet.from_environment(variables, steering))
    for name in ("XLA_FLAGS", *steering):
        variables.pop(name, None)
    return Variant(command=tuple(command), settings=settings, variables=variables)


def with_interpreter(variant: Variant, python: str, platform: str, *, note: Note) -> Variant:
    """Returns the variant run by an interpreter, with its settings as those packages name them."""
    path = os.path.abspath(shutil.which(python) or python)  # noqa: PTH100  # a Path follows links
    build = probe_build(path, platform="cpu" if platform == "cpu" else "cuda")
    settings = for_build(
        variant.settings, KnownSettings(build), note=lambda text: note(f"for {build.build}: {text}")
    )
    return replace(
        variant, command=(path, *variant.command), settings=settings, build=build, name=build.build
    )


@contextlib.contextmanager
def at_revision(variant: Variant, revision: str | None, place: Path) -> Iterator[Variant]:
    """Yields the variant in a worktree of a git revision, if any, which is removed afterwards."""
    if revision is None:
        yield variant
        return
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
    below = _git("rev-parse", "--show-prefix").strip()
    listed = _git("ls-tree", "-r", "--full-tree", commit).splitlines()
    if modules := [line.partition("\t")[2] for line in listed if line.startswith("160000")]:
        raise StudyFileError(
            f"a revision must be whole in a worktree but {revision} has submodules "
            f"({modules[0]}): check out both revisions yourself, and compare the two command lines"
        )
    tree = place.with_name(f"{place.name}-{commit[:12]}")
    _remove_worktree(tree)
    try:
        _git("worktree", "add", "--detach", "--force", str(tree), commit)
        if not (tree / below).is_dir():
            raise StudyFileError(
                f"this folder must be in both revisions but {revision} has no {below}"
            )
        entering = ENTERING.format(tree=shlex.quote(str(tree)), below=shlex.quote(f"./{below}"))
        yield replace(variant, entering=entering, name=f"{revision} ({commit[:8]})")
    finally:
        _remove_worktree(tree)


def changed_files() -> list[str]:
    """Returns the tracked files of the caller's repository that differ from its last commit."""
    return [line[3:] for line in _git("status", "--porcelain", "--untracked-files=no").splitlines()]


def _remove_worktree(tree: Path) -> None:
    if tree.exists():
        _git("worktree", "remove", "--force", "--force", str(tree), may_fail=True)
        remove_tree(tree)
        _git("worktree", "prune", may_fail=True)


def _git(*arguments: str, may_fail: bool = False) -> str:
    """Returns what a command of git prints; StudyFileError if it fails, unless it may."""
    try:
        process = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise StudyFileError(
            f"git must be there for revisions but cannot be started: {error.strerror}"
        ) from error
    if process.returncode != 0 and not may_fail:
        lines = process.stderr.strip().splitlines() or ["no reason given"]
        raise StudyFileError(
            "a revision must be one of this folder's git repository, checked out whole, but git "
            f"says of {arguments[-1]!r}: {lines[-1]}"
        )
    return process.stdout
