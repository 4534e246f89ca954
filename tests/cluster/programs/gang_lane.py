"""A lane program that runs real trials over the workers of its gang."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel
from autotune.model import FlagSet, parse_study
from autotune.workers import GangLauncher, WorkerFailed

channel = Channel()
study = channel.receive()
launcher = GangLauncher(parse_study(study["study"]), study_dir=study["study_dir"], base=os.environ)


def do(unit: dict[str, Any]) -> dict[str, Any]:
    folder = Path("trial")
    folder.mkdir(exist_ok=True)
    try:
        worker = launcher.start(
            FlagSet(unit["settings"]), folder, progress=lambda phase: channel.send("phase", phase=phase)
        )
        for _ in range(unit["blocks"]):
            times = worker.run_block(3)
            channel.send("block", steps=len(times))
    except WorkerFailed as failed:
        failure = failed.failure
        logs = {p.name: p.read_text() for p in folder.glob("*.log")}
        return {"failure": failure.kind.value, "message": failure.message, "of_machine": failed.infrastructure, **logs}
    report = worker.report
    worker.close()
    names = [p.name for p in folder.iterdir()]
    return {"processes": report.process_count, "devices": report.device_count, "logs": names}


while (unit := channel.receive())["type"] == "unit":
    channel.send("result", **do(unit))
launcher.close()
