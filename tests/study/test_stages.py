from __future__ import annotations

import re
from pathlib import Path

from autotune.study.stages import STAGES

PAGE = Path(__file__).parents[2] / "docs/study.md"


def test_the_page_has_the_stages_in_order() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What happens in a study\n")[2].partition("\n#")[0]
    steps = re.findall(r"^(\d+)\. \*\*(.+?)\.?\*\*", section, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(STAGES) + 1))
    assert [name.lower() for _, name in steps] == [stage.name.lower() for stage in STAGES]
