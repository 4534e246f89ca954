"""The atlas: a table of precompiled effects of each setting on each kind of model and GPU.

The table lies in ``autotune/data/atlas``, one file of JSON lines for each jaxlib (`AtlasRow` is a line), written by
``make atlas``. ``kinds.toml`` beside it names the workload for each kind of model. A verdict holds for one *cell* (a
jaxlib, a kind of model, a GPU and their number), or without a kind of model for a whole release.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable

from pydantic import TypeAdapter, ValidationError

from autotune.model.errors import SettingError
from autotune.model.numbers import Record
from autotune.settings.catalog import release_of

SCHEMA_VERSION = 1
HEADER = f'{{"atlas": {SCHEMA_VERSION}}}'


class AtlasVerdict(StrEnum):
    """Effect of a value of a setting.

    ``rejected``: the build refuses the name or the value. ``default``: the default value. ``same``: the program is the
    default's. ``changes``: it is another one. ``fails``: it does not compile. ``unseen``: read at run time or by the
    autotuner on the device, which no compilation shows. ``elsewhere``: a setting of another platform. ``unsettled``:
    not compiled.
    """

    REJECTED = "rejected"
    DEFAULT = "default"
    SAME = "same"
    CHANGES = "changes"
    FAILS = "fails"
    UNSEEN = "unseen"
    ELSEWHERE = "elsewhere"
    UNSETTLED = "unsettled"


class AtlasRow(Record):
    """One line of the table."""

    jaxlib: str
    """The release, also of the CUDA plugin."""
    workload: str = ""
    """Kind of model, a name of ``kinds.toml``; empty in a row for all cells of the release."""
    target: str = ""
    """GPU, a name of `autotune targets list`; empty likewise."""
    gpus: int = 0
    """0 likewise."""
    kind: str = "setting"
    """``setting``, or ``cell``: the default's own program."""
    name: str = ""
    """Setting; empty for a cell."""
    value: str = ""
    """As in a `FlagSet`; empty for a cell."""
    verdict: AtlasVerdict
    tried: str = ""
    """How ``same`` was found: ``alone``, or ``together``, in sets of all that change nothing."""
    changes: tuple[str, ...] = ()
    """Differences from the default's program, such as ``all-gather (async): 9 -> 3``."""
    needs: tuple[str, ...] = ()
    """Settings with which some value acts, if none acts alone; the values were not distinguished. Where some value of a
    setting acts alone, its others are not tried with other settings."""
    program: str = ""
    """Digest within a cell; empty if the value was not compiled alone."""
    peak_bytes: int | None = None
    """Device memory of the step."""
    compiled: int | None = None
    """Number of compiled sets; cells only."""
    seconds: float | None = None
    """Sum of their compile times; cells only."""
    message: str = ""
    """Reason of a rejection or failure, or of ``unseen``."""

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """Release, kind of model, GPU and their number."""
        return self.jaxlib, self.workload, self.target, self.gpus


class Atlas:
    """The rows of the table, with an index by setting."""

    def __init__(self, rows: Iterable[AtlasRow]) -> None:
        self.rows = tuple(rows)
        self._by_name: dict[str, list[AtlasRow]] = defaultdict(list)
        for row in self.rows:
            self._by_name[row.name].append(row)

    def __iter__(self) -> Iterator[AtlasRow]:
        return iter(self.rows)

    @property
    def jaxlibs(self) -> tuple[str, ...]:
        """Releases in the table, oldest first."""
        found = {r.jaxlib for r in self.rows}
        return tuple(sorted(found, key=release_of))

    @property
    def cells(self) -> tuple[AtlasRow, ...]:
        """The rows of kind ``cell``."""
        return tuple(r for r in self.rows if r.kind == "cell")

    def of(self, name: str) -> tuple[AtlasRow, ...]:
        """All rows of a setting."""
        return tuple(self._by_name.get(name, ()))


@functools.cache
def load_atlas() -> Atlas:
    """Loads the table of this package."""
    return read_atlas(atlas_folder())


def read_atlas(folder: Traversable) -> Atlas:
    """Reads the table in a folder.

    Raises:
        SettingError: If the folder is missing, or a file has another schema.
    """
    if not folder.is_dir():
        raise SettingError(f"a table of the atlas must lie in a folder but {folder} is none")
    files = sorted((p for p in folder.iterdir() if p.name.endswith(".jsonl")), key=lambda p: p.name)
    return Atlas(row for path in files for row in read_rows(path))


def read_rows(path: Traversable) -> list[AtlasRow]:
    """Reads one file of the table.

    Raises:
        SettingError: If a line has another schema.
    """
    adapter = TypeAdapter(AtlasRow)
    head, *lines = path.read_text("utf-8").splitlines() or [""]
    if head != HEADER:
        raise SettingError(f"{path.name}: the first line of a table of the atlas must be {HEADER} but got {head!r}")
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            rows.append(adapter.validate_json(line))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise SettingError(
                f"{path.name}: line {number} must be a row of the atlas (schema {SCHEMA_VERSION}) but {wrong['msg']}"
            ) from error
    return rows


def atlas_folder() -> Traversable:
    """The table's folder in this package."""
    return resources.files("autotune") / "data" / "atlas"


def place_of(row: AtlasRow) -> str:
    """The cell of a row: ``dense-fsdp@8xh100-sxm``; ``all cells`` for a row of a whole release."""
    return f"{row.workload}@{row.gpus}x{row.target}" if row.workload else "all cells"
