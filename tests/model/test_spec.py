from __future__ import annotations

from pathlib import Path

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.spec import Effort, load_study, parse_study

MINIMAL = {"name": "s", "workload": {"entry": "llama"}}


def broken(**more: object) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_study({**MINIMAL, **more}, source="x.toml")
    return str(caught.value)


def test_minimal_study_has_sensible_defaults() -> None:
    spec = parse_study(MINIMAL)
    assert spec.measure.min_effect == 0.005
    assert spec.confirm.processes == 20
    assert len(spec.baseline) == 0


def test_misspelt_key_is_named_with_its_close_match() -> None:
    message = broken(serach={"trials": 3})
    assert "x.toml" in message
    assert "`serach` is not a key" in message
    assert "did you mean `search`?" in message


def test_misspelt_key_inside_a_section() -> None:
    assert "`measure.pair_cap` is not a key of a study; did you mean `pairs_cap`?" in broken(measure={"pair_cap": 3})


@pytest.mark.parametrize(
    ("section", "fragment"),
    [
        ({"search": {"trials": 0}}, "search.trials"),
        ({"search": {"trials": "many"}}, "search.trials"),
        ({"search": {"time_budget": "soon"}}, "search.time_budget"),
        ({"search": {"time_budget": "-3s"}}, "search.time_budget"),
        ({"device": {"platform": "tpu"}}, "device.platform"),
        ({"device": {"count": 3, "process_count": 2}}, "must be a multiple"),
        ({"device": {"count": 3, "node_count": 2}}, "must be a multiple of `process_count` but got 3 and 2"),
        ({"device": {"count": 6, "process_count": 3, "node_count": 2}}, "multiple of `node_count`"),
        ({"measure": {"min_effect": 0}}, "measure.min_effect"),
        ({"baseline": {"--xla_gpu_x": 1}}, "without dashes"),
        ({"baseline": {"xla_gpu_x": [1]}}, "baseline"),
        ({"baseline": 3}, "baseline"),
        ({"name": "../up"}, "name"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_illegal_values_name_the_key(section: dict[str, object], fragment: str) -> None:
    assert fragment in broken(**section)


def test_every_problem_is_told_at_once() -> None:
    message = broken(search={"trials": 0}, measure={"pairs_cap": 1}, extra=1)
    assert message.count("\n  - ") == 3


def test_missing_workload_is_named() -> None:
    with pytest.raises(StudyFileError, match="`workload` must be given"):
        parse_study({"name": "s"})


def test_missing_file_lists_a_close_one(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    with pytest.raises(StudyFileError, match=r"did you mean `quickstart\.toml`"):
        load_study(tmp_path / "quickstrat.toml")


def test_malformed_toml_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('name = "s"\nworkload = {')
    with pytest.raises(StudyFileError, match=r"s\.toml must be TOML but: .*end of document"):
        load_study(file)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyFileError, match="UTF-8"):
        load_study(file)


def test_identity_ignores_budgets_but_not_measuring() -> None:
    base = parse_study(MINIMAL)
    assert parse_study({**MINIMAL, "search": {"trials": 99}}).identity == base.identity
    assert parse_study({**MINIMAL, "seed": 1}).identity != base.identity
    assert parse_study({**MINIMAL, "measure": {"pairs_cap": 41}}).identity != base.identity


def test_workload_hash_ignores_flags() -> None:
    base = parse_study(MINIMAL)
    assert parse_study({**MINIMAL, "baseline": {"xla_a": 1}}).workload_hash == base.workload_hash
    assert parse_study({**MINIMAL, "device": {"count": 2}}).workload_hash != base.workload_hash


def test_effort_scales_caps() -> None:
    spec = parse_study(MINIMAL)
    quick, full = spec.at_effort(Effort.QUICK), spec.at_effort(Effort.FULL)
    assert (quick.measure.pairs_cap, full.measure.pairs_cap) == (20, 80)
    assert (quick.confirm.processes, full.confirm.processes) == (10, 40)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "studies").glob("*.toml")), ids=lambda p: p.name)
def test_every_study_of_the_repository_is_legal(path: Path) -> None:
    spec = load_study(path)
    assert spec.name == path.stem
    assert path.read_text().startswith("# For "), "each study says whom it is for"


def test_spec_survives_json() -> None:
    spec = parse_study({**MINIMAL, "baseline": {"xla_a": True}, "search": {"settings": {"xla_b": [1, 2]}}})
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec


def test_a_soak_may_be_nothing_but_not_less() -> None:
    study = {"name": "s", "workload": {"entry": "llama"}}
    assert parse_study({**study, "confirm": {"soak": 0}}).confirm.soak == 0
    assert parse_study({**study, "confirm": {"soak": "2m"}}).confirm.soak == 120
    with pytest.raises(StudyFileError) as caught:
        parse_study({**study, "confirm": {"soak": "-3s"}})
    assert str(caught.value).count("soak") == 1
    assert str(caught.value).count("but got") == 1


def test_what_the_study_as_a_whole_must_fulfil_is_said_without_an_empty_key() -> None:
    workload = {"command": ["train"], "read": {"pattern": "(?P<step_s>.*)"}}
    with pytest.raises(StudyFileError) as caught:
        parse_study({"name": "s", "workload": workload, "measure": {"mode": "interleaved"}})
    assert "``" not in str(caught.value)
    assert "`measure.mode` must be" in str(caught.value)


def test_network_of_the_cluster_is_part_of_no_measurement() -> None:
    def identity(**more: object) -> str:
        return parse_study({**MINIMAL, **more}).identity

    assert identity(device={"nic_bytes_per_s": 12.5e9}) == identity()
    assert "device.nic_bytes_per_s" in broken(device={"nic_bytes_per_s": 0})
