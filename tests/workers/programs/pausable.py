"""A training program without JAX that knows nothing of pauses; of its arguments, the first says how it takes them.

``pausable.py [KIND [STARTS]]``: a line is appended to the file STARTS at each start.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

kind = sys.argv[1] if len(sys.argv) > 1 else ""
flags = os.environ.get("XLA_FLAGS", "")
step_s = (
    (0.1 if kind == "watchdog" else 0.02)
    * (0.6 if "fast_math=true" in flags else 1.0)
    * (1.3 if "min_max=true" in flags else 1.0)
)
if len(sys.argv) > 2:
    with Path(sys.argv[2]).open("a", encoding="utf-8") as starts:
        starts.write(f"{flags}\n")
beat_s = begun_s = time.monotonic()


def watch() -> None:
    """Ends the program when it stood still for a while."""
    looked_s = time.monotonic()
    while time.monotonic() - looked_s < 0.5:
        looked_s = time.monotonic()
        time.sleep(0.02)
    print("watchdog: it stood still for 0.5 s", flush=True)
    os._exit(3)


atexit.register(print, "ended as it should", flush=True)
if kind == "children":
    endless = "import time\nwhile True: time.sleep(0.01)"
    subprocess.Popen([sys.executable, "-c", endless])
    subprocess.Popen([sys.executable, "-c", endless], start_new_session=True)
slow = 0
for number in range(45 if kind == "short" else 10**6):
    before_s, beat_s = beat_s, time.monotonic()
    if kind == "watchdog" and number == 0:
        threading.Thread(target=watch, daemon=True).start()
    if kind == "catches-up":
        slow = 10 if beat_s - before_s > 0.15 else max(0, slow - 1)
    if kind != "elsewhere" or beat_s - begun_s < number * step_s:  # else its steps were done while it was paused
        time.sleep(step_s * (3 if slow else 1))
    if kind == "in-bursts":  # as of a program that does not flush what it prints
        print("".join(f"step {3 * number + i} loss 0.5\n" for i in range(3)), end="", flush=True)
    elif kind == "own-clock":
        print("took 10.0 ms", flush=True)
    else:
        print(f"step {number} loss {1 / (1 + number):.9f}", flush=True)
