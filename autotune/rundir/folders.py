"""Where the raw samples and logs of measurements lie: a folder for each, below a run directory or a lane's scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import TypeAdapter

from autotune.model import Pair
from autotune.rundir.files import (
    append_synced,
    cannot_read,
    cannot_write,
    folder_within,
    refuse_path,
    write_atomically,
)
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
            RunDirectoryError: If a part is not a plain name or a symbolic link, or the folder cannot be made.
        """
        return folder_within(self.path, *parts)

    def relative(self, path: Path) -> str:
        """A path as it is kept in records: relative, so that runs can be moved and lanes may be elsewhere."""
        return path.relative_to(self.path).as_posix()

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """What keeps each raw pair of a measurement, in place of what a killed session left of it."""
        file = folder / PAIRS
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(file, error) from error
        return lambda pair: append_synced(file, pair.model_dump_json(exclude_none=True) + "\n", sync=False)

    def write_beside(self, folder: Path, name: str, make_text: Callable[[], str]) -> None:
        """Writes what belongs to one measurement, for people to read."""
        refuse_path(name)
        write_atomically(folder / name, make_text())

    def pairs(self, directory: str) -> Iterator[Pair]:
        """Raw pairs of blocks of one measurement, in order; a torn last line is ignored.

        Raises:
            RunDirectoryError: If a whole line is not a pair (the file was edited or is damaged), or cannot be read.
        """
        file = self.path / directory / PAIRS
        try:
            lines = file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise cannot_read(file, error) from error
        for number, line in enumerate(lines, 1):
            yield parse_line(_PAIR, line, file, number, what="a pair of blocks")
