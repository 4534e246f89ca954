"""NCCL's example tuner takes anything for a rule without a complaint, so that each rule is checked before a start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.child.variables import TUNER_RULES, read_variables
from autotune.model.errors import LaunchError, SettingError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.spec import parse_study
from autotune.model.tuner_rules import TUNER_PLUGIN
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher
from autotune.workers.settings_check import check_environment
from tests.tables import toml_beside
from tests.workers.conftest import command

CASES = toml_beside(__file__, "tuner_rules.toml")
RULES = CASES["legal"][1]


@pytest.mark.parametrize(("text", "words"), [*CASES["wrong"], (";".join([RULES] * 5000), "at most 100 .* 10000")])
def test_a_wrong_rule_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=rf"{TUNER_RULES} must .*{words}.*; (write|leave)") as caught:
        FlagSet({TUNER_RULES: text})
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=TUNER_RULES):
        parse_study({"name": "s", "workload": {"entry": "llama"}, "baseline": {TUNER_RULES: text}})


@pytest.mark.parametrize("workload", [{"entry": "llama"}, command()])
def test_a_worker_reads_the_rules_of_its_set_and_the_others_have_no_tuner(
    workload: dict[str, Any], tmp_path: Path
) -> None:
    searched = {"settings": {TUNER_RULES: [DEFAULT, *CASES["legal"]]}}
    spec = parse_study({"name": "s", "workload": workload, "search": searched})
    kind = CommandLauncher if "command" in workload else LocalLauncher
    with pytest.raises(LaunchError, match=f"{TUNER_PLUGIN} must name"):
        kind(spec, study_dir=".", base={})
    launcher = kind(spec, study_dir=".", base={TUNER_PLUGIN: "libtuner.so", TUNER_RULES: "/site.conf"})
    assert not {TUNER_PLUGIN, TUNER_RULES} & launcher._environment(FlagSet(), tmp_path).keys()
    for rules in CASES["legal"]:
        settings = FlagSet({TUNER_RULES: rules})
        env = launcher._environment(settings, tmp_path)
        assert env[TUNER_PLUGIN] == "libtuner.so"
        assert Path(env[TUNER_RULES]).read_text() == "".join(f"{rule}\n" for rule in rules.split(";"))
        root = f"/proc/{os.getpid()}/root"
        assert check_environment(settings, read_variables(env, settings, root)).lost == ()
        Path(env[TUNER_RULES]).write_text("allreduce,0,9,ring,simple,1,-1,-1\n")
        for values in (read_variables(env, settings), read_variables({TUNER_RULES: "/dev/zero"}, settings), {}):
            assert len(check_environment(settings, values).lost) == 1
