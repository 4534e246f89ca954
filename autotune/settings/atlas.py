"""The atlas: a table of precompiled effects of each setting on each kind of model and GPU.

The table lies in ``autotune/data/atlas``, one file of JSON lines for each jaxlib (`AtlasRow` is a line), written by
``make atlas``. ``kinds.toml`` beside it names the workload for each kind of model. A verdict holds for one *cell* (a
jaxlib, a kind of model, a GPU and their number), or without a kind of model for a whole release.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from autotune.model.errors import SettingError, close_matches
from autotune.model.numbers import Record
from autotune.settings.catalog import DATA, release_of

if TYPE_CHECKING:
    import pandas as pd

FOLDER = DATA / "atlas"
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

    @property
    def place(self) -> str:
        """The cell in its release: ``dense-fsdp@8xh100-sxm``; ``all cells`` for a row of a whole release."""
        return f"{self.workload}@{self.gpus}x{self.target}" if self.workload else "all cells"


def read_atlas(folder: Traversable = FOLDER) -> list[AtlasRow]:
    """Reads the table in a folder."""
    files = sorted((p for p in folder.iterdir() if p.name.endswith(".jsonl")), key=lambda p: p.name)
    return [row for path in files for row in read_rows(path)]


def read_rows(path: Traversable) -> list[AtlasRow]:
    """Reads one file of the table, whose first line is `HEADER`."""
    return [AtlasRow.model_validate_json(line) for line in path.read_text("utf-8").splitlines()[1:]]


# ---------------------------------------------------------------------- views


def atlas() -> pd.DataFrame:
    """Loads the atlas as a frame: the effect of each value of each setting on each kind of model.

    Returns:
        One row per `AtlasRow` with its fields as columns: ``changes`` and ``needs`` joined by semicolons;
        ``peak_bytes`` (bytes), ``compiled`` (programs) and ``gpus`` as integers; ``seconds`` (s) as floats; missing
        where unknown.
    """
    import pandas as pd

    rows = [
        {**row.model_dump(mode="json"), "changes": "; ".join(row.changes), "needs": "; ".join(row.needs)}
        for row in read_atlas()
    ]
    frame = pd.DataFrame(rows, columns=list(AtlasRow.model_fields))
    return frame.astype({**dict.fromkeys(("gpus", "peak_bytes", "compiled"), "Int64"), "seconds": "float64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AtlasFinding:
    """One verdict on a value of a setting, with all cells of a release that share it."""

    value: str
    jaxlib: str
    verdict: str
    cells: int
    """Number of cells with this verdict."""
    of: int
    """Number of cells of the release."""
    places: tuple[str, ...]
    """The cells, as `AtlasRow.place`."""
    words: str


def atlas_findings(table: Sequence[AtlasRow], name: str) -> list[AtlasFinding]:
    """Returns a setting's findings: newest release, default, most cells first; SettingError if the atlas lacks it."""
    groups: dict[tuple[str, str, str, str], list[AtlasRow]] = defaultdict(list)
    for row in table:
        if row.name == name:
            groups[row.jaxlib, row.value, row.verdict, row.tried].append(row)
    if not groups:
        known = {row.name for row in table if row.name}
        raise SettingError(f"the atlas must have the setting but has no {name!r}{close_matches(name, known)}")
    cells = Counter(row.jaxlib for row in table if row.kind == "cell")
    values = list(dict.fromkeys(value for _, value, _, _ in groups))
    found = [
        AtlasFinding(
            value=value,
            jaxlib=jaxlib,
            verdict=verdict,
            cells=len(rows) if rows[0].workload else cells[jaxlib],
            of=cells[jaxlib],
            places=tuple(dict.fromkeys(row.place for row in rows)),
            words=_format_rows(rows),
        )
        for (jaxlib, value, verdict, _), rows in groups.items()
    ]
    found.sort(key=lambda f: (f.verdict != AtlasVerdict.DEFAULT, values.index(f.value), -f.cells))
    return sorted(found, key=lambda f: release_of(f.jaxlib), reverse=True)  # stable


def _format_rows(rows: list[AtlasRow]) -> str:
    """Formats rows of one verdict: changes of the first row that has any, what it needs, and why."""
    first = next((r for r in rows if r.changes), rows[0])
    words = list(first.changes)
    if first.needs:
        words.append(f"{'needs' if first.changes else 'only together with'} {', '.join(first.needs)}")
    if first.verdict is AtlasVerdict.SAME and first.tried:
        words.append("compiled alone" if first.tried == "alone" else "compiled with others that change nothing")
    return "; ".join(w for w in (*words, first.message) if w)
