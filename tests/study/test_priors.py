"""Priors of settings before anything is measured: the screen, and how they are spread."""

from __future__ import annotations

import pytest

from autotune.compiler.screen import Effect, ScreenReport, SetReport, SettingReport, ValueReport
from autotune.model.flags import FlagSet
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.screen import LARGEST_PRIOR, priors_of


def value(text: str, *changes: str, message: str = "") -> ValueReport:
    return ValueReport(value=text, is_active=bool(changes), changes=changes, message=message)


def report(*settings: SettingReport) -> ScreenReport:
    return ScreenReport(
        target="h100-sxm", topology="1x8", versions={}, reference=SetReport(name="reference", settings=FlagSet()),
        settings=settings, sets=(), limit_bytes=None, compiled_count=1, cached_count=0, duration_s=1.0,
        canary=FlagSet(),
    )  # fmt: skip


def space(*names: str) -> SearchSpace:
    return SearchSpace(tuple(Parameter(name=n, choices=("0", "1", "2"), default="0") for n in names))


NAMES = tuple(f"xla_unknown_{i}" for i in range(20))


def test_what_nothing_is_known_of_shares_the_expected_number() -> None:
    found = priors_of(space(*NAMES), None)
    assert sum(found.values()) == pytest.approx(EXPECTED)
    assert max(priors_of(space(*NAMES[:3]), None).values()) == pytest.approx(MOST_LIKELY)


def test_what_changes_the_program_is_thought_likelier_than_what_does_not() -> None:
    settings = [
        SettingReport(name=NAMES[0], effect=Effect.ACTIVE, stage="program", values=(value("1", "a", "b"), value("2"))),
        SettingReport(
            name=NAMES[1], effect=Effect.ACTIVE, stage="program", values=(value("1"),), interacts_with=("xla_other",)
        ),
        SettingReport(name=NAMES[2], effect=Effect.FAILS, stage="program", values=(value("1", message="no"),)),
        SettingReport(name=NAMES[3], effect=Effect.NO_OP, stage="program", values=(value("1"),)),
        SettingReport(name=NAMES[4], effect=Effect.MEASURE, stage="runtime"),
    ]
    found = priors_of(space(*NAMES), report(*settings))
    active, together, fails, no_op, measure = (found[n] for n in NAMES[:5])
    assert active > together == measure > fails == no_op > 0
    assert max(found.values()) <= LARGEST_PRIOR
