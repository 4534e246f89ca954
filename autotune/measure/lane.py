"""The program of a lane that is a process of its own: takes tasks, sends results.

Run behind a guard as ``python -m autotune.measure.lane``; see `cluster.engine`. Its logs go into
the run directory where that is a disk that both see, and are sent to the driver otherwise.
"""

from __future__ import annotations

import contextlib
import pkgutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel
from autotune.machine.files import LANE, Scratch
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.errors import AutotuneError, StoppedError
from autotune.model.files import Texts
from autotune.model.measurement import Pair, WorkPerStep
from autotune.model.spec import StudySpec
from autotune.rundir.store import Folders

ALIVE_EVERY_S = 5.0
# Bytes of the beginning and of the end of a log that are sent: a message has a longest line.
MOST_SENT = 300_000


class _Progress:
    """Tells the driver what a lane reports, over the channel."""

    def __init__(self, channel: Channel, folders: Folders) -> None:
        self._channel = channel
        self._folders = folders
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message, from any thread."""
        with self._lock:
            self._channel.send(kind, **fields)

    def phase(self, what: str) -> None:
        """See `autotune.measure.context.ProgressSink`."""
        self.send("phase", what=what)

    def pair(self, folder: Path, pair: Pair, work: WorkPerStep | None = None) -> None:
        """See `autotune.measure.context.ProgressSink`."""
        told_work = None if work is None else work.model_dump()
        names = self._folders.relative(folder).split("/")
        self.send("pair", folder=names, pair=pair.model_dump(mode="json"), work=told_work)

    def incident(self, what: str) -> None:
        """See `autotune.measure.context.ProgressSink`."""
        self.send("incident", what=what)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Says every few seconds that the lane lives, while inside."""
        ended = threading.Event()

        def say_on() -> None:
            while True:  # the first word at once: it tells that the lane is there
                with contextlib.suppress(OSError):
                    self.send("alive")
                if ended.wait(ALIVE_EVERY_S):
                    return

        threading.Thread(target=say_on, name="alive", daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def main() -> int:
    """Serves one driver until it is gone."""
    channel = Channel()
    with contextlib.ExitStack() as stack:
        study = channel.receive()
        if study["type"] != "study":
            return 0
        scratch = Scratch(LANE)
        stack.callback(scratch.close)
        folders = Folders(Path(study["run"] or scratch.path))
        progress = _Progress(channel, folders)
        progress.send("alive")
        stack.enter_context(progress.alive())
        try:
            spec = StudySpec.model_validate(study["study"])
            make_launcher = pkgutil.resolve_name(study["launcher"])
            launcher = make_launcher(spec, study["study_dir"], study["devices"])
            runner = TaskRunner(spec, folders, launcher, progress)
        except AutotuneError as error:
            channel.receive()
            progress.send("error", message=str(error))
            return 1
        stack.callback(runner.close)
        while True:
            message = channel.receive()
            if message["type"] != "task":
                return 0
            assignment = Assignment.model_validate(message["assignment"])
            try:
                record = runner.do(assignment)
            except AutotuneError as error:
                is_stopped = isinstance(error, StoppedError)
                progress.send("error", message=str(error), is_stopped=is_stopped)
                continue
            finally:
                if study["run"] is None:  # the driver cannot see the logs
                    _send_logs(progress, folders, assignment.folder)
            progress.send("result", record=record.model_dump(mode="json", exclude_none=True))


def _send_logs(progress: _Progress, folders: Folders, folder: Texts) -> None:
    for file in sorted(folders.folder(*folder).rglob("*")):
        if not file.is_file() or file.is_symlink():
            continue
        data = file.read_bytes()
        if len(data) > 2 * MOST_SENT:
            data = data[:MOST_SENT] + b"\n[... left out here ...]\n" + data[-MOST_SENT:]
        text = data.decode(errors="replace")
        progress.send(
            "file", folder=folders.relative(file.parent).split("/"), name=file.name, text=text
        )
        file.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
