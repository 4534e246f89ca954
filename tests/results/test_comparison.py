"""What is compared, what is refused, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.model.errors import NotComparableError
from autotune.model.flags import FlagSet
from autotune.results.comparison import _states, compare_stores
from autotune.rundir.store import Store
from tests.runs import EFFECTS, Run, record, replay_study
from tests.tables import toml_beside

CASES = toml_beside(__file__)

Alter = Callable[..., Path]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same study after an upgrade: `xla_a=1` does nothing to the program now, `xla_d=2` still pays."""
    spec = replay_study(
        effects={"xla_d=2": EFFECTS["xla_d=2"], "xla_b=1": EFFECTS["xla_b=1"]},
        inert=["xla_a=1", "xla_c=1"],
        failures={"xla_b=2": "out_of_memory"},
        noise={"white_sd": 1e-6},
        study={"baseline": {"NCCL_DEBUG": "WARN"}},
    )
    return record(tmp_path_factory.mktemp("runs") / "newer", spec, trials=30)


def test_versions_side_by_side(finished: Store, newer: Store, altered: Alter) -> None:
    new = Store.open(altered(newer, "after", versions={"jaxlib": "0.10.0"}))
    old = Store.open(altered(finished, "before", versions={"jaxlib": "0.9.2"}))
    table = compare_stores([old, new], by=["jaxlib"])
    assert list(table.frame["study"]) == ["before", "after"]
    assert list(table.frame["jaxlib"]) == ["0.9.2", "0.10.0"]
    assert list(table.frame["winner"]) == ["xla_a=1 xla_d=2", "xla_d=2"]
    assert table.frame["ratio"].to_list() == pytest.approx([0.95 * 0.97, 0.97], abs=1e-3)
    assert "jaxlib" not in table.same
    assert table.same["workload"] == "llama"
    assert table.settings.loc["xla_d=2", "agreement"] == "agree"
    assert table.settings.loc["xla_a=1", "agreement"] == "differ"
    assert table.settings.loc["xla_a=1", "after"] == "no-op"
    assert table.settings.loc["xla_d=2", "before"] == "in the winner"
    assert list(table.settings["agreement"]) == sorted(table.settings["agreement"], reverse=True)  # differ stands first


def test_a_part_of_a_failing_set_that_ran_is_not_called_failed(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1 xla_b=2": "crash", "xla_d=1": "hang"})
    first = (("pair", FlagSet({"xla_a": "1", "xla_b": "2", "xla_c": "1"})), ("one", FlagSet({"xla_d": "1"})))
    _, store, _ = run_replay(spec, trials=2, first=first)
    assert _states(store) == {"xla_a=1": "unclear", "xla_b=2": "unclear", "xla_c=1": "unclear", "xla_d=1": "failed"}


@pytest.mark.parametrize(("field", "change"), CASES["compared"])
def test_a_difference_is_refused_by_name_unless_it_is_the_axis(
    finished: Store, altered: Alter, field: str, change: dict[str, object]
) -> None:
    other = Store.open(altered(finished, "other", **change))
    words = rf"must have the same {field} but .* make it the axis with --by {field}"
    with pytest.raises(NotComparableError, match=words):
        compare_stores([finished, other])
    table = compare_stores([finished, other], by=[field])
    assert len(table.frame) == 2
    assert field in table.frame.columns


def test_an_unknown_axis_and_an_unmeasured_run_are_refused(finished: Store, tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="did you mean `jaxlib`"):
        compare_stores([finished, finished], by=["jaxlb"])
    empty = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    empty.close()
    with pytest.raises(NotComparableError, match="its reference"):
        compare_stores([finished, empty])


def test_all_forms_hold_the_same(finished: Store, altered: Alter) -> None:
    other = Store.open(altered(finished, "other|<i>"[:5], device_kind="<i>GPU</i>|"))
    table = compare_stores([finished, other], by=["gpu"])
    data = json.loads(json.dumps(table.to_json()))
    assert [s["study"] for s in data["studies"]] == list(table.frame["study"])
    assert {s["setting"] for s in data["settings"]} == set(table.settings.index)
    text = table.to_markdown()
    assert "&lt;i>GPU&lt;/i>\\|" in text
    head = next(line for line in text.splitlines() if line.startswith("| study"))
    rule, first = text.splitlines()[text.splitlines().index(head) + 1 :][:2]
    assert head.count("|") == rule.count("|") == first.replace("\\|", "").count("|")
