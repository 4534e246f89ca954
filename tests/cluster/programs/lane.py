"""A lane program that does at once, or never, what its unit says."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from autotune.child.channel import Channel

channel = Channel()
study = channel.receive()
while (unit := channel.receive())["type"] == "unit":
    channel.send("begun", pid=os.getpid(), token=study["token"], cores=[*os.sched_getaffinity(0)])
    if unit["do"] == "die":
        print("about to die", flush=True)
        os._exit(3)
    if unit["do"] == "lie":  # what only an engine may say
        for kind in ("left", "joined", "gone", "hello", "closed"):
            channel.send(kind, why="a lie", name="a lie", host="nowhere", devices=8)
    if unit["do"] == "wait":
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        channel.send("waits", child=child.pid)
        while not Path(unit["until"]).exists():
            time.sleep(0.01)
        child.kill()
    channel.send("result", value=unit["value"])
