"""What tests cost, as a plugin of pytest: processor seconds of each (its process and the children that it waited for),
processes that it starts, compilations of JAX, simulated studies; and limits that fail a set (`harness.yardstick`).

`--costs FILE` writes the seconds of each test, `--store-costs FILE` what later runs are compared with by `--yardstick
FILE`. `--processor-limit S` and `--test-limit S` are in seconds of that file; without one they hold nothing.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from harness import yardstick
from harness.yardstick import COUNTS, Cost, Limits, Stored

COST = "cost"
STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}
COMPILED = "/jax/core/compile/backend_compile_duration"

costs: dict[str, Cost] = {}
counted: Counter[str] = Counter()


def spent_s() -> float:
    """Processor seconds of this process and of the children that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


class Meter:
    """What was spent since a test began, fixtures that others use too apart."""

    def __init__(self) -> None:
        self._is_listening = False
        self._shared_depth = 0
        self.begin()

    def begin(self) -> None:
        """A test begins."""
        self._listen()
        self._shared_s = 0.0
        self._began_s, self._began_counts = spent_s(), self._counts()

    def cost(self) -> Cost:
        """What it cost so far."""
        self._listen()
        counts, began = self._counts(), self._began_counts
        spent = spent_s() - self._began_s
        return Cost(spent - self._shared_s, self._shared_s, {name: counts[name] - began[name] for name in COUNTS})

    def make_shared(self) -> Iterator[None]:
        """A fixture that others use too is made meanwhile; what it needs in turn is of it."""
        began = spent_s()
        self._shared_depth += 1
        yield
        self._shared_depth -= 1
        if self._shared_depth == 0:
            self._shared_s += spent_s() - began

    def _listen(self) -> None:
        monitoring = sys.modules.get("jax.monitoring")
        if monitoring is not None and not self._is_listening:
            monitoring.register_event_duration_secs_listener(_count_compilation)
            self._is_listening = True

    @staticmethod
    def _counts() -> dict[str, int]:
        simulated = sys.modules.get("harness.simulated_machine")
        studies = 0 if simulated is None else simulated.SimulatedLauncher.made
        return {**{name: counted[name] for name in COUNTS}, "studies": studies}


def _count_compilation(event: str, _duration: float, **_about: object) -> None:
    counted["compilations"] += event == COMPILED


def _count_start(event: str, _arguments: object) -> None:
    if event in STARTS:
        counted["processes"] += 1


meter = Meter()
began_s = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="write the processor seconds of each test to this JSON file")
    parser.addoption("--store-costs", type=Path, help="write what later runs are compared with to this JSON file")
    parser.addoption("--yardstick", type=Path, help="stored costs with which this run is compared")
    parser.addoption("--processor-limit", type=float, help="fail if all tests need more stored seconds than this")
    parser.addoption("--test-limit", type=float, help="fail if one test needs more stored seconds than this")
    parser.addoption("--wall-limit", type=float, help="warn if the run takes longer than this")


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_count_start)


def pytest_runtest_logstart(nodeid: str) -> None:
    meter.begin()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]):  # type: ignore[no-untyped-def]
    if fixturedef.scope == "function":
        return (yield)
    made = meter.make_shared()
    next(made)
    try:
        return (yield)
    finally:
        next(made, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if call.when == "teardown":
        report.user_properties.append((COST, asdict(meter.cost())))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == COST and isinstance(value, dict):
            costs[report.nodeid] = Cost(**value)


def stored_of(config: pytest.Config) -> Stored | None:
    """The costs with which this run is compared."""
    file: Path | None = config.getoption("--yardstick")
    return yardstick.read(config.rootpath / file) if file is not None else None


def failures_of(config: pytest.Config) -> list[str]:
    """What of this run is over its limit."""
    stored = stored_of(config)
    limits = Limits(set_s=config.getoption("--processor-limit"), test_s=config.getoption("--test-limit"))
    return yardstick.failures(stored, costs, limits) if stored is not None else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if path := session.config.getoption("--costs"):
        path.parent.mkdir(parents=True, exist_ok=True)
        seconds = {name: round(cost.own_s + cost.shared_s, 3) for name, cost in sorted(costs.items())}
        path.write_text(json.dumps(seconds, indent=0), encoding="utf-8")
    if session.exitstatus != pytest.ExitCode.OK:
        return
    if path := session.config.getoption("--store-costs"):
        yardstick.write(yardstick.to_store(costs), path)
    if failures_of(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not costs:
        return
    write = terminalreporter.write_line
    terminalreporter.section("processor seconds")
    for name, cost in sorted(costs.items(), key=lambda item: -item[1].own_s)[:10]:
        write(f"{cost.own_s:7.1f}  {name}")
    write(f"{yardstick.total_s(costs):7.1f}  all {len(costs)} tests")
    stored = stored_of(config)
    count_limits = stored.count_limits if stored else {}
    for name, count in yardstick.total_counts(costs).items():
        limit = f"; at most {count_limits[name]}" if name in count_limits else ""
        write(f"{count:7d}  {COUNTS[name]}{limit}")
    if stored is not None:
        _write_stored_seconds(terminalreporter, stored, config.getoption("--processor-limit"))
    elif config.getoption("--yardstick"):
        write("No limit was held: the costs of this set are not stored yet (make costs).")
    wall_s, wall_limit = time.monotonic() - began_s, config.getoption("--wall-limit")
    if wall_limit is not None and wall_s > wall_limit:
        write(f"warning: {wall_s:.0f} s of wall; {wall_limit:.0f} are meant", yellow=True)
    if config.getoption("--store-costs") and terminalreporter.stats.keys() & {"failed", "error"}:
        write("The costs were not stored, for a test failed; mend it and store them again.", red=True)
    for failure in failures_of(config):
        write(f"FAILED: {failure}", red=True)


def _write_stored_seconds(reporter: pytest.TerminalReporter, stored: Stored, limit: float | None) -> None:
    factor = yardstick.machine_factor(stored, costs)
    if factor is None:
        return
    now = yardstick.total_s(costs) / factor
    at_most = f"; at most {limit:.0f}" if limit is not None else ""
    reporter.write_line(f"{now:7.1f}  in stored seconds, of which {stored.total_s:.1f} were stored{at_most}")
    reporter.write_line(f"{factor:7.2f}  times the stored seconds are what a test takes here, in the median")
