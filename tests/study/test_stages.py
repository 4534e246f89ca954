from __future__ import annotations

import re
from pathlib import Path

from autotune.study.stages import STAGES
from tests.runs import EFFECTS, Run, replay_study

PAGE = Path(__file__).parents[2] / "docs/study.md"


def test_the_page_has_the_stages_in_order() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What happens in a study\n")[2].partition("\n#")[0]
    steps = re.findall(r"^(\d+)\. \*\*(.+?)\.?\*\*", section, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(STAGES) + 1))
    assert [name.lower() for _, name in steps] == [stage.name.lower() for stage in STAGES]


def test_one_seed_gives_one_study_whatever_its_folder_is_called(run_replay: Run) -> None:
    spec = replay_study(effects=EFFECTS, noise="drift")
    same = []
    for folder in ("run", "aa_run", "another name"):
        _, store, _ = run_replay(spec, trials=6, folder=folder)
        dumped = [r.model_dump(mode="json") for r in store.records()]
        same.append([(r["kind"], r.get("settings"), (r.get("comparison") or {}).get("estimate")) for r in dumped])
    assert same[0] == same[1] == same[2]
