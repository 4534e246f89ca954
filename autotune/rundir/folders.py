"""Where the raw samples and logs of measurements lie: a folder for each, below a run directory or a lane's scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import TypeAdapter

from autotune.model import Pair, RunDirectoryError
from autotune.rundir.files import append_synced, refuse_path, write_atomically
from autotune.rundir.record_index import parse_line

PAIRS = "pairs.jsonl"
_PAIR: TypeAdapter[Pair] = TypeAdapter(Pair)


class Folders:
    """The folders of measurements.

    Args:
        path: Below which they lie.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, *parts: str) -> Path:
        """A folder, made if needed.

        Raises:
            RunDirectoryError: If a part is not a plain name, or the folder cannot be made.
        """
        for part in parts:
            refuse_path(part)
        path = self.path.joinpath(*parts)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in reversed((path, *path.parents[: len(parts) - 1])):  # as private as the one it lies in
                folder.mkdir(mode=folder.parent.stat().st_mode & 0o777, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"{path} must be writable but: {error.strerror}") from error
        return path

    def relative(self, path: Path) -> str:
        """A path as it is kept in records: relative, so that runs can be moved and lanes may be elsewhere."""
        return path.relative_to(self.path).as_posix()

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """What keeps each raw pair of a measurement, in place of what a killed session left of it."""
        file = folder / PAIRS
        file.unlink(missing_ok=True)
        return lambda pair: append_synced(file, pair.model_dump_json(exclude_none=True) + "\n", sync=False)

    def write_beside(self, folder: Path, name: str, make_text: Callable[[], str]) -> None:
        """Writes what belongs to one measurement, for people to read."""
        refuse_path(name)
        write_atomically(folder / name, make_text())

    def pairs(self, directory: str) -> Iterator[Pair]:
        """Raw pairs of blocks of one measurement, in order; a torn last line is ignored.

        Raises:
            RunDirectoryError: If a whole line is not a pair (the file was edited or is damaged).
        """
        file = self.path / directory / PAIRS
        if not file.exists():
            return
        for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
            yield parse_line(_PAIR, line, file, number, what="a pair of blocks")
