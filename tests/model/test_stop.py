"""A signal ends a study where it waits, and nowhere else."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import pytest

from autotune.model.spec import parse_study
from autotune.model.stop import Stopped, check_stop, result_of, stoppable

ENDS = [(signal.SIGTERM, Stopped), (signal.SIGUSR1, Stopped), (signal.SIGINT, KeyboardInterrupt)]
IDS = [number.name for number, _ in ENDS]


def end_of(work: Callable[[], object]) -> type[BaseException] | None:
    """How a stoppable block ends that does some work."""
    try:
        with stoppable():
            work()
    except KeyboardInterrupt as error:
        return type(error)
    return None


def strike(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "kind"), ENDS, ids=IDS)
def test_a_signal_that_falls_into_a_serializer_is_raised_at_the_next_wait(
    number: signal.Signals, kind: type[KeyboardInterrupt]
) -> None:
    spec = parse_study({"name": "x", "workload": {"entry": "llama"}, "search": {"trials": 3}})
    rng = random.Random(1)

    def serializes() -> None:
        struck = threading.Timer(rng.uniform(0.001, 0.01), strike, (number,))
        struck.start()
        while not struck.finished.is_set():
            spec.lasting()
        struck.join()
        check_stop()

    assert {end_of(serializes) for _ in range(25)} == {kind}


@pytest.mark.parametrize(("number", "kind"), ENDS, ids=IDS)
def test_a_signal_ends_a_wait_for_what_never_comes(number: signal.Signals, kind: type[KeyboardInterrupt]) -> None:
    def waits() -> None:
        threading.Timer(0.05, strike, (number,)).start()
        result_of(Future[None]())

    assert end_of(waits) is kind


def test_a_second_signal_does_not_interrupt_the_clean_up() -> None:
    cleaned = []

    def is_struck_twice() -> None:
        try:
            strike(signal.SIGTERM)
            check_stop()
        finally:
            strike(signal.SIGUSR1)
            strike(signal.SIGTERM)
            check_stop()
            cleaned.append(True)

    assert end_of(is_struck_twice) is Stopped
    assert cleaned
    check_stop()


def test_a_signal_after_the_last_wait_is_raised_at_the_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert end_of(lambda: strike(signal.SIGTERM)) is Stopped
    assert signal.getsignal(signal.SIGTERM) is before


def test_only_the_main_thread_is_stopped() -> None:
    went_on = []

    def works_elsewhere() -> None:
        strike(signal.SIGTERM)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(check_stop).result()
        went_on.append(True)

    assert end_of(works_elsewhere) is Stopped
    assert went_on


def test_a_result_is_waited_for_and_an_error_or_a_cancelled_future_raises() -> None:
    done, failed, cancelled = Future[int](), Future[int](), Future[int]()
    threading.Timer(0.05, done.set_result, (1,)).start()
    assert result_of(done) == 1
    failed.set_exception(TimeoutError("of its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(failed)
    cancelled.cancel()
    with pytest.raises(CancelledError):
        result_of(cancelled)
