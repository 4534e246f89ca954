"""What tests cost: processor seconds of each (its process and the children that it waited for), and a limit for a set.

`--costs FILE` writes them as JSON; `--processor-limit S` fails a run that needs more than S seconds in all, by the
speed of the machine on which the limits were set.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest

COST = "processor_s"
LOOP_S = 0.076
"""Processor seconds of `slowness`' loop where the limits were set."""

costs: dict[str, float] = {}
begun: dict[str, float] = {}


def spent_s() -> float:
    """Processor seconds of this process and of the children that it waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def slowness() -> float:
    """How many times slower than there this machine runs a loop, best of five; at least 1."""
    took = []
    for _ in range(5):
        begin, total = time.process_time(), 0
        for i in range(2_000_000):
            total += i * i % 7
        took.append(time.process_time() - begin)
    return max(1.0, min(took) / LOOP_S)


def limit_of(config: pytest.Config) -> float | None:
    """The set's limit on this machine."""
    limit: float | None = config.getoption("--processor-limit")
    return limit and limit * slowness()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, help="write the processor seconds of each test to this JSON file")
    parser.addoption("--processor-limit", type=float, help="fail if all tests need more processor seconds than this")


def pytest_runtest_logstart(nodeid: str) -> None:
    begun[nodeid] = spent_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if call.when == "teardown":
        report.user_properties.append((COST, spent_s() - begun[item.nodeid]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == COST and isinstance(value, float):
            costs[report.nodeid] = value


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if path := session.config.getoption("--costs"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({n: round(s, 3) for n, s in sorted(costs.items())}, indent=0), encoding="utf-8")
    limit = limit_of(session.config)
    if limit is not None and sum(costs.values()) > limit and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not costs:
        return
    limit, total = limit_of(config), sum(costs.values())
    terminalreporter.section("processor seconds")
    for name, value in sorted(costs.items(), key=lambda c: -c[1])[:10]:
        terminalreporter.write_line(f"{value:7.1f}  {name}")
    terminalreporter.write_line(f"{total:7.1f}  all {len(costs)} tests" + (f"; at most {limit:.0f}" if limit else ""))
    if limit is not None and total > limit:
        terminalreporter.write_line(
            f"FAILED: {total:.0f} processor seconds are over this set's limit of {limit:.0f}. Make the tests above "
            "cheaper, or move one to a later set (marker `gate` or `slow`); CONTRIBUTING.md says how.",
            red=True,
        )
