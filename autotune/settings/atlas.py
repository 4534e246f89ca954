"""The atlas: what each setting does to each kind of model on each GPU, compiled beforehand; data, and how to ask it.

The table lies in ``autotune/data/atlas``, one file of JSON lines for each jaxlib (`AtlasRow` is a line), written by
``autotune atlas build``. ``kinds.toml`` beside it says which workload stands for each kind of model. A verdict is of
one *cell*: a jaxlib, a kind of model, a GPU and how many of them. What no cell decides (a build that lacks a
setting) has rows of its own, without a kind.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autotune.model.errors import SettingError
from autotune.model.numbers import Record
from autotune.settings.catalog import older, read_entries, release_of

SCHEMA_VERSION = 1
_HEADER = f'{{"atlas": {SCHEMA_VERSION}}}'


class AtlasVerdict(StrEnum):
    """What a value of a setting does.

    ``rejected``: the build does not take the name or the value. ``default``: the value in force anyway. ``same``: the
    compiled program is the default's. ``changes``: it is another one. ``fails``: it does not compile here. ``unseen``:
    read at run time or by the autotuner on the device, which no compilation shows. ``elsewhere``: a setting of another
    platform. ``unsettled``: not compiled.
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
    """One line of the table.

    Attributes:
        jaxlib: The release; of its CUDA plugin too.
        workload: Kind of model, a name of ``kinds.toml``; empty in a row for all cells of the release.
        target: GPU, a name of `autotune targets list`; empty likewise.
        gpus: How many of them; 0 likewise.
        kind: ``setting``, or ``cell``: the default's own program.
        name: Of the setting; empty for the cell.
        value: Of the setting as in a `FlagSet`; empty for the cell.
        verdict: What it does.
        tried: How ``same`` was found: ``alone``, or ``together``, in sets of all that change nothing.
        changes: What is different from the default's program, in clauses such as ``all-gather (async): 9 -> 3``.
        needs: Settings among which some value of it acts, if none does alone; which values do was not told apart. Where
            some value of a setting acts alone, its others are not tried with other settings.
        program: Names the program, within a cell: rows with an equal name have one program; empty if none was compiled
            for it alone.
        peak_bytes: Device memory that the step needs.
        compiled: Sets that were compiled for a cell; of a cell only.
        seconds: What compiling them took, one after the other; of a cell only.
        message: Why it is rejected or fails; what cannot be seen.
    """

    jaxlib: str
    workload: str = ""
    target: str = ""
    gpus: int = 0
    kind: str = "setting"
    name: str = ""
    value: str = ""
    verdict: AtlasVerdict
    tried: str = ""
    changes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    program: str = ""
    peak_bytes: int | None = None
    compiled: int | None = None
    seconds: float | None = None
    message: str = ""

    @property
    def cell(self) -> tuple[str, str, str, int]:
        """Release, kind of model, GPU, how many: names the cell."""
        return self.jaxlib, self.workload, self.target, self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """A kind of model, and the workload that stands for it.

    Attributes:
        entry: The preset that is compiled.
        sequences_per_gpu: Sequences of a step for each GPU; the batch is that times the GPUs.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    title: str
    entry: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sequences_per_gpu: float = 1.0
    gpus: tuple[int, ...] = (8, 64)

    def options_for(self, gpus: int) -> dict[str, Any]:
        """The workload's options on so many GPUs."""
        return {**self.options, "batch": max(1, round(self.sequences_per_gpu * gpus))}


class Atlas:
    """The table."""

    def __init__(self, rows: Iterable[AtlasRow]) -> None:
        self.rows = tuple(rows)
        self._by_name: dict[str, list[AtlasRow]] = defaultdict(list)
        for row in self.rows:
            self._by_name[row.name].append(row)

    def __iter__(self) -> Iterator[AtlasRow]:
        return iter(self.rows)

    @property
    def jaxlibs(self) -> tuple[str, ...]:
        """Releases that the table has cells of, oldest first."""
        found = {r.jaxlib for r in self.rows}
        return tuple(sorted(found, key=release_of))

    @property
    def cells(self) -> tuple[AtlasRow, ...]:
        """The row of each cell that was compiled."""
        return tuple(r for r in self.rows if r.kind == "cell")

    def of(self, name: str) -> tuple[AtlasRow, ...]:
        """All rows of a setting."""
        return tuple(self._by_name.get(name, ()))


def load_kinds() -> dict[str, ModelKind]:
    """The kinds of models of the table, by name."""
    return read_entries(atlas_folder() / "kinds.toml", ModelKind)


@functools.cache
def load_atlas() -> Atlas:
    """The table that comes with this package."""
    return read_atlas(atlas_folder())


def read_atlas(folder: Traversable) -> Atlas:
    """Reads the table in a folder.

    Raises:
        SettingError: If there is no such folder, or a file is no table of this schema.
    """
    if not folder.is_dir():
        raise SettingError(
            f"a table of the atlas must lie in a folder but {folder} is none; `autotune atlas build` makes one"
        )
    files = sorted((p for p in folder.iterdir() if p.name.endswith(".jsonl")), key=lambda p: p.name)
    return Atlas(row for path in files for row in read_rows(path))


def read_rows(path: Traversable) -> list[AtlasRow]:
    """The rows of one file of the table.

    Raises:
        SettingError: If a line is not one of this schema; it is named.
    """
    adapter = TypeAdapter(AtlasRow)
    head, *lines = path.read_text("utf-8").splitlines() or [""]
    if head != _HEADER:
        raise SettingError(f"{path.name}: the first line of a table of the atlas must be {_HEADER} but got {head!r}")
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


def atlas_text(rows: Iterable[AtlasRow]) -> str:
    """The text of a table's file, rows sorted, defaults left out."""
    ordered = sorted(rows, key=lambda r: (*r.cell, r.kind, r.name, r.value))
    return "\n".join([_HEADER, *(r.model_dump_json(exclude_defaults=True) for r in ordered)]) + "\n"


def atlas_folder() -> Traversable:
    """Where the table lies in this package."""
    return resources.files("autotune") / "data" / "atlas"


def place_of(row: AtlasRow) -> str:
    """The cell of a row: ``dense-fsdp@8xh100-sxm``; ``all cells`` for a row of a whole release."""
    return f"{row.workload}@{row.gpus}x{row.target}" if row.workload else "all cells"


def newest_not_after(jaxlib: str, releases: Sequence[str]) -> str:
    """The newest of sorted releases that is not after `jaxlib`, else the oldest.

    Raises:
        SettingError: If there are none.
    """
    if not releases:
        raise SettingError("the atlas must have a release but has none; `autotune atlas build` compiles one")
    return ([r for r in releases if not older(jaxlib, r)] or [releases[0]])[-1]
