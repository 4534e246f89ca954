"""Writes records as runs of W&B, MLflow or TensorBoard, in a process that may fail or hang."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.child.channel import Channel
from autotune.machine.environment import (
    Environment,
    caller_environment,
    driver_python,
    with_packages,
)
from autotune.model.errors import StudyFileError
from autotune.model.records import ConclusionRecord, FinalistResult, TrialResult
from autotune.model.redaction import redact_data, redact_text
from autotune.model.texts import Note
from autotune.results.format import finding_in
from autotune.results.tables import TRIAL_COLUMNS, Row, trial_row
from autotune.rundir.files import append_synced
from autotune.rundir.store import Folders, Store
from autotune.workers.base import GuardedProcess

PROJECT = "autotune"  # unless the user's variables name another
LOOK_EVERY_S = 2.0
END_S = 60.0  # longest wait when the study has ended
LIMIT_S = 300  # for one record: trials may leave a tracker little of the machine
LONGEST = 500  # characters of a text
Tracked = TrialResult | FinalistResult | ConclusionRecord


class TrackedRun(NamedTuple):
    """One record as a run of a tracker; the same record always has the same key."""

    key: str
    name: str
    settings: Row
    facts: Row  # among them study and kind
    figures: dict[str, float]  # seconds and bytes


def tracked(record: Tracked, store: Store) -> TrackedRun:
    """Makes the run of a record, without secrets."""
    fields: dict[str, Any] = {"study": store.spec.name, "kind": record.kind}
    name = "conclusion"
    if isinstance(record, TrialResult):
        name = f"trial {record.number}"
        row = trial_row(record, finding_in(store, record))
        fields |= {c: getattr(row, c) for c in TRIAL_COLUMNS if c != "settings"}
    else:
        if isinstance(record, FinalistResult):
            name = record.stage
            if record.trial:
                name += f" of trial {record.trial}"
        fields |= record.model_dump(mode="json", exclude={"settings", "provenance"})
        prefixes = {"estimate": "", "corrected": "corrected_", "failure": "failure_"}
        for field, prefix in prefixes.items():
            values = fields.pop(field, None) or {}
            fields |= {prefix + name: value for name, value in values.items()}
    numbers = {name: v for name, v in fields.items() if isinstance(v, int | float)}
    return TrackedRun(
        key=hashlib.sha256(record.model_dump_json().encode()).hexdigest()[:16],
        name=name,
        settings=_texts(dict(record.settings or {})),
        facts=_texts(fields),
        figures={name: float(v) for name, v in numbers.items() if math.isfinite(v)},
    )


def _texts(fields: Mapping[str, Any]) -> Row:
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    return {name: value[:LONGEST] for name, value in redact_data(texts).items()}


Write = Callable[[TrackedRun], None]
Opened = tuple[Write, str]  # writes a run; where the runs are


def _to_wandb(folder: Path, env: Environment) -> Opened:
    import wandb

    try:
        mode = env.get("WANDB_MODE") or ("online" if wandb.login() else "offline")
    except Exception:  # nobody is logged in, or the server does not answer
        mode = "offline"
    settings = wandb.Settings(
        symlink=False,
        console="off",
        silent=True,
        disable_git=True,
        x_disable_stats=True,
        x_disable_meta=True,
    )

    def write(run: TrackedRun) -> None:
        with wandb.init(
            project=env.get("WANDB_PROJECT", PROJECT),
            group=run.facts["study"],
            job_type=run.facts["kind"],
            name=run.name,
            id=run.key,
            config={**run.facts, **run.settings},
            dir=env.get("WANDB_DIR", str(folder)),
            mode=mode,
            resume="allow",
            settings=settings,
        ) as run_of_wandb:
            run_of_wandb.summary.update(run.figures)

    where = f"{mode}, in {folder}; `wandb sync` sends its runs later"
    return write, mode if mode == "online" else where


def _to_mlflow(folder: Path, env: Environment) -> Opened:
    import mlflow

    if "MLFLOW_TRACKING_URI" not in env:
        mlflow.set_tracking_uri((folder / "mlruns").resolve().as_uri())
    mlflow.set_experiment(env.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
    tag = "autotune.record"

    def write(run: TrackedRun) -> None:
        same = f"tags.`{tag}` = '{run.key}'"
        earlier = mlflow.search_runs(filter_string=same, output_format="list", max_results=1)
        with mlflow.start_run(
            run_id=earlier[0].info.run_id if earlier else None,
            run_name=run.name,
            tags={tag: run.key, **run.facts},
        ):
            mlflow.log_params(run.settings)
            mlflow.log_metrics(run.figures)

    return write, redact_text(mlflow.get_tracking_uri())


def _to_tensorboard(folder: Path, env: Environment) -> Opened:
    from tensorboardX import SummaryWriter

    logs = str(folder / "events")
    writer = SummaryWriter(logs)

    def write(run: TrackedRun) -> None:
        writer.add_hparams(
            {**run.facts, **run.settings},
            run.figures,
            name=f"{run.name.replace(' ', '-')}-{run.key}",
        )

    return write, f"tensorboard --logdir {logs}"


TRACKERS = {
    "wandb": ("wandb", _to_wandb),
    "mlflow": ("mlflow", _to_mlflow),
    "tensorboard": ("tensorboardX", _to_tensorboard),
}


def refuse_trackers(trackers: Sequence[str]) -> None:
    """Refuses trackers that are unknown, or whose package is not installed (StudyFileError)."""
    for name in trackers:
        if name not in TRACKERS:
            names = ", ".join(TRACKERS)
            raise StudyFileError(f"a tracker must be one of {names} but got {name!r}")
        package, _ = TRACKERS[name]
        module = importlib.util.find_spec(package)
        # A folder of that name, such as ./wandb, is no package.
        if not module or not module.origin:
            raise StudyFileError(
                f"the tracker {name} needs the package {package} but it is not installed here; run "
                f"`{driver_python()} -m pip install {package}`. Nothing was started"
            )


def follow(store: Store, write: Write, written: Path, is_last: Callable[[], bool]) -> None:
    """Writes each record whose key is not `written` within `LIMIT_S`, until no more will come."""
    keys = set(written.read_text(encoding="utf-8").split() if written.exists() else ())
    count = 0
    is_over = False
    while not is_over:
        is_over = is_last()
        records = store.records()[count:]
        count += len(records)
        for run in (tracked(r, store) for r in records if isinstance(r, Tracked)):
            if run.key not in keys:
                signal.alarm(LIMIT_S)  # ends this process, whatever it waits for
                write(run)
                append_synced(written, f"{run.key}\n")
                signal.alarm(0)


def main() -> int:
    """Writes records to one tracker until the driver says that there will be no more."""
    name = sys.argv[1]
    path = Path(sys.argv[2])
    os.nice(19)
    channel = Channel()
    folder = Folders(path).folder("trackers", name)
    wait = functools.partial(select.select, [channel], [], [], LOOK_EVERY_S)
    try:
        signal.alarm(LIMIT_S)
        write, where = TRACKERS[name][1](folder, caller_environment())
        signal.alarm(0)
        channel.send("where", text=where)
        follow(Store.open(path), write, folder / "written", lambda: bool(wait()[0]))
    except Exception as error:  # whatever a library of others says
        channel.send_error(type(error).__name__, redact_text(f"{error}"))
        raise
    return 0


class TrackerProcess:
    """The driver's end of a tracker's process for a run directory; what goes wrong is one note."""

    def __init__(self, name: str, run: Path, note: Note) -> None:
        self._name = name
        self._note = note
        self._is_lost = False
        env = {
            "MLFLOW_ALLOW_FILE_STORE": "true",
            **caller_environment(),
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [driver_python(), "-P", "-m", __name__, name, str(run)]
        log = Folders(run).folder("trackers", name) / "tracker.log"
        self._process = GuardedProcess(command, with_packages(env), log)

    def look(self, limit_s: float = 0.0) -> None:
        """Notes what the process said, waiting for its end up to `limit_s` seconds."""
        for message in [*self._process.receive(), *self._process.messages(limit_s)]:
            if message["type"] == "where":
                self._note(f"tracker {self._name}: {message['text']}")
            elif message["type"] == "error":
                self._lose(f"failed ({message['message']})")
        end = self._process.end
        status = end["exit_status"] if end is not None else 0
        if status == -signal.SIGALRM:
            self._lose(f"gave no answer within {LIMIT_S} s")
        elif status:
            self._lose(f"failed ({status})")

    def close(self, patience_s: float) -> None:
        """Lets the process write what is left, for up to `patience_s` seconds, and ends it."""
        self._process.send({"type": "end"})
        self.look(patience_s)
        if patience_s and self._process.end is None:
            self._lose(f"was ended after {patience_s:.0f} s")
        self._process.close(END_S)

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._note(
                f"tracker {self._name} {why}; the study does not need it: the run directory holds "
                "everything, and the same command writes what the tracker lacks"
            )


if __name__ == "__main__":
    sys.exit(main())
