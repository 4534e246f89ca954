"""The files that a study's program needs beside the study file: a pod sees nothing of this machine's disk.

Found are those that the command names, the modules that they import, and the module of an `entry`; what a program opens
by itself nobody sees, so the user may name more. They travel in the study's ConfigMap, which holds a mebibyte.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.model import StudyFileError, StudySpec, strike_text

MOST_BYTES = 900_000
"""A ConfigMap holds 1 MiB with all its names; binary files grow by a third in it, which is counted."""

_SCRIPT = re.compile(r"\./[^{}]+|[^{}]+\.(py|sh)")
"""What can only be meant as a file of the user's."""


def carried_files(spec: StudySpec, study: Path, more: Sequence[str] = ()) -> dict[str, bytes]:
    """Files that go with a study: path below the study's folder to content.

    Args:
        spec: The study.
        study: Its file; the others lie beside it.
        more: Files and folders that the user names, below that folder.

    Raises:
        StudyFileError: If a file is not there, lies elsewhere, holds a secret, or if all together are too large.
    """
    folder = study.resolve().parent
    found: dict[Path, None] = {}
    for name in more:
        _add(found, folder, name, told=f"--carry {name}", must=True)
    if spec.workload.entry is not None and ":" in spec.workload.entry:
        _add_module(found, [folder], spec.workload.entry.partition(":")[0])
    before = ""
    for word in (*(spec.workload.command or ()), *spec.workload.environment.values()):
        if before == "-m":
            _add_module(found, [folder], word)
        else:
            name = word.partition("=")[2] if word.startswith("-") else word
            _add(found, folder, name, told=f"`{word}` of the command", must=_SCRIPT.fullmatch(name) is not None)
        before = word
    _add_imports(found, folder)
    found.pop(study.resolve(), None)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}
    _check(files)
    return files


def _add(found: dict[Path, None], folder: Path, name: str, *, told: str, must: bool) -> None:
    """Adds what a word names, if it names anything here; a word with an absolute path means a file of the image."""
    path = Path(name)
    if not name or "{" in name or (path.is_absolute() and not path.is_relative_to(folder)):
        return
    whole = folder / path
    try:
        is_there = whole.exists()
    except (OSError, ValueError):  # too long for a name, or with a zero byte: no file
        is_there = False
    if not is_there and not must:
        return
    if not is_there or path.is_absolute() or ".." in path.parts:
        got = "is not there" if not is_there else "is absolute" if path.is_absolute() else "leads out of there"
        raise StudyFileError(
            f"a study on Kubernetes carries its files, which must lie beside or below the study file ({folder}) and be "
            f"named from there, but {told} {got}; put it there, or into the image and name it by its absolute path in "
            "the image"
        )
    for file in sorted(whole.rglob("*")) if whole.is_dir() else [whole]:
        parts = file.relative_to(folder).parts
        is_wanted = whole == file or not any(p.startswith(".") or p == "__pycache__" for p in parts)
        if is_wanted and file.is_file():
            found[file] = None


def _add_module(found: dict[Path, None], roots: Sequence[Path], module: str) -> None:
    """Adds the source of a module that lies below one of some folders, with the packages that it lies in."""
    parts = module.split(".")
    if not all(p.isidentifier() for p in parts):
        return
    for root in roots:
        for depth in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:depth])
            for file in (place.with_suffix(".py"), place / "__init__.py", place / "__main__.py"):
                if file.is_file():
                    found[file] = None


def _add_imports(found: dict[Path, None], folder: Path) -> None:
    """Adds what the Python files import from beside them or the study, and so on."""
    waiting = [p for p in found if p.suffix == ".py"]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for module in _imports(file, folder):
            _add_module(found, [folder, file.parent], module)
        waiting += [p for p in found if p.suffix == ".py" and p not in seen]


def _imports(file: Path, folder: Path) -> Iterator[str]:
    """Names of modules that a file imports, from anywhere; relative ones from the study's folder."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # it tells by itself, where it runs
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:
                above = file.parents[node.level - 1]
                if not above.is_relative_to(folder):
                    continue
                base = [*above.relative_to(folder).parts, *base]
            yield from (".".join([*base, alias.name]) for alias in node.names if alias.name != "*")
            if base:
                yield ".".join(base)


def _check(files: dict[str, bytes]) -> None:
    size = sum(len(text) if is_text(text) else len(text) * 4 // 3 for text in files.values())
    if size > MOST_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise StudyFileError(
            f"the files of a study on Kubernetes travel in a ConfigMap, so they must have at most {MOST_BYTES:,} bytes "
            f"together but have {size:,} (the largest is {largest}); put them into the image and name them by their "
            "absolute paths there"
        )
    for name, content in files.items():
        lines = content.decode(errors="replace").splitlines() if is_text(content) else ()
        if secret := [n for n, line in enumerate(lines, start=1) if strike_text(line) != line]:
            raise StudyFileError(
                f"a file that travels in a ConfigMap must hold no secret, but {name}, line {secret[0]}, has the shape "
                "of one; let the program read it from an environment variable that comes from a Secret (`secretKeyRef`)"
            )


def is_text(content: bytes) -> bool:
    """Whether a ConfigMap can hold it as text: UTF-8 without control characters that YAML has no place for."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c in "\n\t" for c in text)
