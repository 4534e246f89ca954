"""Where the raw samples and logs of measurements lie: a folder for each, below a run directory or a lane's scratch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.model import Pair, RunDirectoryError
from autotune.rundir.files import append_synced, refuse_path, write_atomically

PAIRS = "pairs.jsonl"


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
            path.mkdir(parents=True, exist_ok=True)
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
        """Raw pairs of blocks of one measurement, in order; a torn last line is ignored."""
        file = self.path / directory / PAIRS
        if not file.exists():
            return
        for line in file.read_bytes().split(b"\n")[:-1]:
            yield Pair.model_validate_json(line)
