"""The commands that tell what the atlas says, on a table whose answers are known."""

from __future__ import annotations

import pytest

from tests.console import autotune
from tests.runs import SMALL_ATLAS

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"


def test_where_a_setting_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.settings.atlas.FOLDER", SMALL_ATLAS)
    lines = autotune("atlas", "show", COMBINE).stdout.splitlines()
    assert [line.split("\t")[:4] for line in lines] == [
        ["jaxlib", "value", "verdict", "in"],
        ["0.12.0.1", "1073741824", "same", "2 of 2 cells"],
        ["0.10.2", "1073741824", "changes", "2 of 3 cells: dense-fsdp@8xh100-sxm, dense-fsdp@64xh100-sxm"],
        ["0.10.2", "1073741824", "same", "1 of 3 cells: moe@8xh200"],
    ]
