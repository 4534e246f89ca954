"""Clocks that are wrong, or are set while a study runs: what it counts is time that passed, and only while it ran."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from autotune.model.records import ConclusionRecord, SessionRecord, SpanRecord
from autotune.rundir.store import Store
from tests.cluster.jobs import driving, is_whole, logs, trials_of, wait_for_trials, write

pytestmark = pytest.mark.cluster

LANES = ("--devices", "0,1")

# libfaketime would do but for its `clock_nanosleep`, under which Python's `time.sleep` fails.
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    long seconds = 0;
    FILE *file = fopen(getenv("WRONG_CLOCK"), "r");
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


class Clock:
    """The time of day as a driver and its lanes see it; monotonic clocks are as they are.

    Args:
        folder: For a library that lies, and the file that says how much.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(hours=0)
        library = folder / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"]
        subprocess.run(command, input=LIBRARY, text=True, check=True, timeout=60)
        self.env = {**os.environ, "LD_PRELOAD": str(library), "WRONG_CLOCK": str(self._file)}

    def set(self, *, hours: int) -> None:
        """Sets it wrong by so many hours, in one step."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{3600 * hours}\n")
        new.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here, with which the clock is made wrong")
    return Clock(tmp_path)


def test_a_clock_that_is_set_in_mid_study_uses_up_no_budget(clock: Clock, tmp_path: Path) -> None:
    """Seen with clocks of day: two hours ahead, and a study of 30 minutes ended after 11 s."""
    write(tmp_path, trials=10, delay_s=0.03, search='time_budget = "30m"')
    with driving(tmp_path, clock.env, *LANES) as driver:
        wait_for_trials(tmp_path, 3, driver=driver)
        clock.set(hours=2)
        assert driver.wait(timeout=170) == 0, logs(tmp_path)
    assert "time budget used" not in logs(tmp_path)
    is_whole(tmp_path / "run", trials=10)
    store = Store.open(tmp_path / "run")
    times = [r.at_s for r in store.records()]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 170
    (span,) = store.of(SpanRecord)
    assert 0 < span.wall_s < 170
    # The clock was set indeed, and where somebody reads the time of day it is told as it was.
    ended, began = store.of(ConclusionRecord)[-1].ended, store.of(SessionRecord)[-1].started
    moved = datetime.fromisoformat(ended) - datetime.fromisoformat(began)
    assert abs(moved - timedelta(hours=2)) < timedelta(minutes=5)


def test_a_night_in_the_queue_uses_up_no_budget(clock: Clock, tmp_path: Path) -> None:
    """Seen with clocks of day: workers that were started again in the morning found their budget used."""
    write(tmp_path, trials=12, delay_s=0.03, search='time_budget = "10m"\ngpu_hours = 1.0')
    with driving(tmp_path, clock.env, *LANES) as driver:
        wait_for_trials(tmp_path, 3, driver=driver)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=60) == 75, logs(tmp_path)
    before = trials_of(tmp_path / "run")
    used_s = max(r.at_s for r in Store.open(tmp_path / "run").records())
    clock.set(hours=10)
    with driving(tmp_path, clock.env, *LANES) as driver:
        assert driver.wait(timeout=170) == 0, logs(tmp_path)
    assert "used: the search ends" not in logs(tmp_path)
    is_whole(tmp_path / "run", trials=12)
    assert before < 12
    times = [r.at_s for r in Store.open(tmp_path / "run").records()]
    assert times == sorted(times)
    assert used_s < times[-1] < used_s + 170
