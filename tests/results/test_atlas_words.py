"""What the atlas answers: a small table whose answers are told by hand."""

from __future__ import annotations

import pytest

import autotune
from autotune.model.errors import SettingError
from autotune.settings.atlas import atlas_findings, read_atlas
from tests.runs import SMALL_ATLAS

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
SCHEDULE = "xla_gpu_enable_latency_hiding_scheduler"
SMALL = read_atlas(SMALL_ATLAS)


def test_the_frame_holds_every_row_and_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.settings.atlas.read_atlas", lambda: SMALL)
    frame = autotune.atlas()
    assert len(frame) == len(SMALL)
    moe = frame[(frame.workload == "moe") & (frame.kind == "setting") & (frame.jaxlib == "0.10.2")]
    assert sorted(zip(moe.name, moe.verdict, strict=True)) == [
        (COMBINE, "same"),
        ("xla_gpu_autotune_level", "unseen"),
        ("xla_gpu_enable_command_buffer", "changes"),
        (SCHEDULE, "changes"),
        ("xla_gpu_graph_level", "fails"),
    ]
    assert moe.set_index("name").needs[SCHEDULE] == COMBINE
    assert frame.peak_bytes.dtype == "Int64"


def test_a_setting_is_told_newest_release_first() -> None:
    told = [(t.jaxlib, t.value, t.verdict, t.cells, t.of) for t in atlas_findings(SMALL, COMBINE)]
    size = "1073741824"
    assert told == [("0.12.0.1", size, "same", 2, 2), ("0.10.2", size, "changes", 2, 3), ("0.10.2", size, "same", 1, 3)]
    changes = atlas_findings(SMALL, COMBINE)[1]
    assert changes.places == ("dense-fsdp@8xh100-sxm", "dense-fsdp@64xh100-sxm")
    assert changes.words == "all-gather: 226 -> 33; order of 812 instructions"
    assert [(t.jaxlib, t.verdict) for t in atlas_findings(SMALL, SCHEDULE)] == [
        ("0.12.0.1", "default"),
        ("0.10.2", "changes"),
    ]


def test_what_the_table_lacks_is_refused_with_what_it_has() -> None:
    with pytest.raises(SettingError, match="did you mean `xla_gpu_graph_level`"):
        atlas_findings(SMALL, "xla_gpu_graf_level")
    with pytest.raises(SettingError, match="must have the setting"):
        atlas_findings([], COMBINE)
