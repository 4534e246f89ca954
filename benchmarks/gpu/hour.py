"""Units of work within some minutes: planned by cost, kept as JSON lines, resumed after a kill."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

BEAT_S = 0.5
"""How often the time spent is written down: what a kill can make nobody's."""

ROOM = 1.1
"""What a unit is planned with over what the dearest one of its kind took."""

Row = dict[str, Any]


class Clock:
    """Counts the seconds spent on one part of the hour over all sessions, written by a thread.

    Args:
        path: Where the seconds of earlier sessions are.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._before_s, self._began = path, read_seconds(path), time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="hour", daemon=True)
        self._thread.start()

    @property
    def spent_s(self) -> float:
        """Seconds so far."""
        return self._before_s + time.monotonic() - self._began

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            write_seconds(self._path, self.spent_s)

    def close(self) -> None:
        """Writes them down for the next session."""
        self._ended.set()
        self._thread.join()
        write_seconds(self._path, self.spent_s)


def read_seconds(path: Path) -> float:
    """The seconds that were written down; 0 where none were."""
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0


def write_seconds(path: Path, seconds: float) -> None:
    """Writes seconds down; who reads meanwhile, or after a kill, finds the old ones or these."""
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(f"{seconds:.3f}", encoding="ascii")
    beside.replace(path)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of JSON lines; a line that a kill cut short is none."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict):
                yield row


class Hour:
    """One part of the hour: its results so far, its time, and what is left of it.

    Args:
        out: Folder of all parts; nothing is written elsewhere.
        part: Name of this one: rows go to ``PART.jsonl``, everything else below ``PART/``.
        minutes: What all sessions of it may take together.
        made_by: What every row says of who made it.
        clock: Counts its time.
    """

    def __init__(
        self, out: Path, part: str, *, minutes: float, made_by: Mapping[str, Any], clock: Clock
    ) -> None:
        self.part, self.folder, self._path = part, out / part, out / f"{part}.jsonl"
        self.budget_s = 60.0 * minutes
        self._made_by, self._clock = dict(made_by), clock
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows = [row for row in read_rows(self._path) if "unit" in row]
        self.skipped: dict[str, float] = {}
        self._mend()

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.budget_s - self._clock.spent_s

    def find(self, unit: str) -> Row | None:
        """What a unit gave; None if it was not done, or broke in a way that says nothing."""
        done = [row for row in self.rows if row["unit"] == unit and "error" not in row]
        return done[-1] if done else None

    def cost_of(self, kind: str, otherwise_s: float) -> float:
        """Seconds of a unit of a kind: a little above the dearest one so far, or an assumption."""
        took = [
            row["took_s"] for row in self.rows if row.get("kind") == kind and "error" not in row
        ]
        return ROOM * max(took) if took else otherwise_s

    @property
    def pace(self) -> float:
        """Factor, at least 1, by which the last two units were dearer than expected, rounded up."""
        last = [row for row in self.rows if row.get("expected_s") and "error" not in row][-2:]
        slower = max((row["took_s"] / row["expected_s"] for row in last), default=1.0)
        return ROOM * slower if slower > 1.0 else 1.0

    def do(
        self, unit: str, cost_s: float, work: Callable[[], Row], *, kind: str = ""
    ) -> Row | None:
        """The result of a unit: of an earlier session, or done now if so much time is left.

        Args:
            unit: Its name.
            cost_s: What it is expected to take, in seconds.
            work: Does it; what goes wrong in it is a result too, and must not cost the others.
            kind: Units of one kind cost about the same.
        """
        if (found := self.find(unit)) is not None:
            return found
        if cost_s * self.pace > self.left_s:
            self.skipped[unit] = cost_s
            self.say(f"{unit} is left out: it takes about {cost_s:.0f} s")
            return None
        began = self._clock.spent_s
        self.say(f"{unit}, about {cost_s:.0f} s")
        try:
            result = work()
        except Exception as error:
            result = {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc()[-2000:],
            }
            self.say(f"{unit} broke: {result['error'][:200]}")
        took_s = self._clock.spent_s - began
        row = {
            "unit": unit,
            "kind": kind or unit,
            "at_s": round(began, 3),
            "expected_s": cost_s,
            "took_s": round(took_s, 3),
        }
        row |= result
        self.keep(row)
        return row if "error" not in row else None

    def keep(self, row: Row) -> None:
        """Appends a row; it is on the disk before the next unit begins."""
        line = json.dumps({**row, **self._made_by}, default=str)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.rows.append(json.loads(line))

    def _mend(self) -> None:
        """Ends a line that a kill cut short, so that the next row does not become part of it."""
        if self._path.exists() and (text := self._path.read_bytes()) and not text.endswith(b"\n"):
            with self._path.open("ab") as stream:
                stream.write(b"\n")

    def say(self, what: str) -> None:
        """Shows progress: the time, and what is under way."""
        spent = self._clock.spent_s
        print(f"[{self.part} {spent:6.1f} of {self.budget_s:.0f} s] {what}", flush=True)

    def close(self) -> None:
        """Writes down what was done and what is missing, and ends the session."""
        spent = self._clock.spent_s
        broken = [
            row["unit"] for row in self.rows if "error" in row and self.find(row["unit"]) is None
        ]
        done = {row["unit"] for row in self.rows} - set(broken)
        self.keep_end(spent, sorted(set(broken)))
        self._clock.close()
        self.say(
            f"{len(done)} units are done, {len(set(broken))} broke, {len(self.skipped)} are left "
            "out"
        )
        if self.skipped or broken:
            wanted = (spent + sum(self.skipped.values())) / 60
            self.say(
                f"the same command with --minutes {wanted + 1:.0f} goes on with what is missing"
            )

    def keep_end(self, spent: float, broken: list[str]) -> None:
        """The last row of a session; of no unit."""
        end = {
            "end": self.part,
            "spent_s": round(spent, 3),
            "budget_s": self.budget_s,
            "left_out": self.skipped,
        }
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({**end, "broken": broken, **self._made_by}) + "\n")
