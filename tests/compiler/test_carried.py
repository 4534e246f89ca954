"""A screen that was made on another machine is used where it is of the same, and told to differ where it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.carried import Carried, find_screen, keep_screen
from autotune.compiler.job import CompileJob
from autotune.compiler.open import domains
from autotune.compiler.targets import load_target, parse_topology
from autotune.compiler.verdicts import Screener
from autotune.model.errors import RunDirectoryError
from autotune.model.flags import FlagSet
from autotune.settings.catalog import load_catalog
from tests.compiler.rules import BUFFER, COMBINE, Rules, space

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2"}


@dataclass(frozen=True)
class Place:
    """A machine, and what is compiled there."""

    target: str = "h100-sxm"
    topology: str = "1x8"
    jaxlib: str = "0.10.2"
    plugin: str = "0.10.2"
    entry: str = "llama"
    size: str = "small"
    baseline: Mapping[str, str] | None = None

    def screener(self, rules: Rules | None = None) -> Screener:
        compiler: Any = rules or Rules(self.target)
        compiler.job = CompileJob(
            entry=self.entry,
            options={"size": self.size},
            target=load_target(self.target),
            topology=parse_topology(self.topology),
            versions={**VERSIONS, "jaxlib": self.jaxlib, "jax-cuda12-plugin": self.plugin},
            base={},
        )
        return Screener(compiler, baseline=FlagSet(self.baseline or {}), catalog=load_catalog())


VALUES = domains(space())


def carried(folder: Path, place: Place = Place()) -> Path:
    screener = place.screener()
    return keep_screen(folder, screener, VALUES, screener.run(VALUES, {}))


def found(folder: Path, place: Place = Place(), values: Any = VALUES, rules: Rules | None = None) -> Carried:
    return find_screen(folder, place.screener(rules), values)


def test_a_screen_of_the_same_is_used_after_one_compilation(tmp_path: Path) -> None:
    path, rules = carried(tmp_path), Rules()
    taken = found(tmp_path, rules=rules)
    assert taken.screen is not None
    assert (taken.path, taken.differences) == (path, ())
    assert rules.compiled == [FlagSet()]  # the reference, and nothing else


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Place(target="h200"), "GPU: h100-sxm, here h200"),
        (Place(topology="2x8"), "topology: 1x8, here 2x8"),
        (Place(jaxlib="0.12.0"), "jaxlib 0.10.2, here 0.12.0"),
        (Place(plugin="0.10.3"), "jax-cuda12-plugin 0.10.2, here 0.10.3"),
        (Place(entry="llama-small"), "workload: llama, here llama-small"),
        (Place(size="80gb"), "its options"),
        (Place(baseline={BUFFER: "false"}), "baseline"),
    ],
)
def test_what_is_different_is_told_and_nothing_is_compiled(tmp_path: Path, place: Place, said: str) -> None:
    carried(tmp_path)
    rules = Rules()
    taken = found(tmp_path, place, rules=rules)
    assert taken.screen is None
    assert any(said in d for d in taken.differences), taken.differences
    assert rules.compiled == []


class Otherwise(Rules):
    """A compiler that makes another program of the same, as another source or an unseen variable would."""

    def name(self, settings: Mapping[str, str]) -> str:
        return f"other {super().name(settings)}"


def test_the_program_has_the_last_word(tmp_path: Path) -> None:
    carried(tmp_path)
    taken = found(tmp_path, rules=Otherwise())
    assert taken.screen is None
    assert "the reference's program" in taken.differences[0]


def test_a_setting_or_value_that_was_not_screened_is_told(tmp_path: Path) -> None:
    carried(tmp_path)
    more = {**VALUES, COMBINE: [*VALUES[COMBINE], "999"]}
    assert COMBINE in found(tmp_path, values=more).differences[0]
    fewer = {n: v for n, v in VALUES.items() if n != COMBINE}
    assert found(tmp_path, values=fewer).screen is not None


def test_a_screen_whose_time_was_up_is_told(tmp_path: Path) -> None:
    screener = Place().screener()
    keep_screen(tmp_path, screener, VALUES, screener.run(VALUES, {}, is_over=lambda: True))
    assert "its time was up" in found(tmp_path).differences[0]


def test_of_several_screens_the_fitting_one_is_found(tmp_path: Path) -> None:
    for place in (Place(target="h200"), Place(), Place(jaxlib="0.12.0", plugin="0.12.0")):
        carried(tmp_path, place)
    assert len(list(tmp_path.glob("screen-*.json"))) == 3
    assert found(tmp_path).screen is not None
    assert len(found(tmp_path, Place(target="h200", jaxlib="0.11")).differences) == 1  # told of the nearest


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}'])
def test_a_torn_file_is_told_and_not_used(tmp_path: Path, text: str) -> None:
    carried(tmp_path).write_text(text, encoding="utf-8")
    assert "cannot be read" in found(tmp_path).differences[0]


def test_a_forged_report_of_another_program_is_not_used(tmp_path: Path) -> None:
    path = carried(tmp_path)
    body = json.loads(path.read_text(encoding="utf-8"))
    body["report"]["reference"]["fingerprint"] = "forged"
    path.write_text(json.dumps(body), encoding="utf-8")
    assert found(tmp_path).screen is None


def test_an_empty_folder_has_none_and_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == Carried()
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="must be writable"):
        carried(tmp_path / "file")
