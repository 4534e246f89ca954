"""T4 files: ours are legal and hold what was measured; those of other tools are read."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.trial import TrialResult
from autotune.results.t4 import Invalidity, read_t4, render_t4
from autotune.rundir.store import Store
from tests.runs import replay_study

# The parts of the format that its authors' schema 1.0.0 demands, written down anew.
SCHEMA = {
    "type": "object",
    "required": ["schema_version", "results"],
    "properties": {
        "schema_version": {"type": "string", "pattern": "^[0-9]+[.][0-9]+[.][0-9]+$"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["configuration", "times", "invalidity", "correctness"],
                "properties": {
                    "timestamp": {"type": "string"},
                    "configuration": {"type": "object"},
                    "objectives": {"type": "array"},
                    "times": {
                        "type": "object",
                        "properties": {
                            "compilation_time": {"type": "number"},
                            "runtimes": {"type": "array", "items": {"type": "number"}},
                            "framework": {"type": "number"},
                            "search_algorithm": {"type": "number"},
                            "validation": {"type": "number"},
                        },
                    },
                    "invalidity": {"enum": ["timeout", "compile", "runtime", "correctness", "constraints", "correct"]},
                    "correctness": {"type": "number"},
                    "measurements": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "name": {"type": "string"},
                                "value": {"type": ["number", "string", "array"]},
                                "unit": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_an_export_is_legal_and_comes_back(finished: Store, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="checks against JSON schemas need jsonschema")
    text = render_t4(finished)
    jsonschema.validate(json.loads(text), SCHEMA)
    (tmp_path / "t4.json").write_text(text)
    frame = read_t4(tmp_path / "t4.json").frame()
    results = finished.of(TrialResult)
    assert len(frame) == len(results)
    for row, r in zip(frame.to_dict("records"), results, strict=True):
        assert {n: v for n, v in row.items() if str(n).startswith("xla_") and v != "(default)"} == dict(r.settings)
        if r.failure is not None:
            assert row["invalidity"] == "runtime"
            assert math.isnan(row["step_time_ratio"])
        elif r.comparison is not None:
            assert row["step_time_ratio"] == r.comparison.estimate.ratio
            steps = [t * 1e3 for p in finished.pairs(r.directory or "-") for t in p.candidate_s]
            assert row["runtimes"] == pytest.approx(steps)


def test_milliseconds_and_what_failed_how(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    for number, kind in enumerate(("unknown_flag", "compile_error", "hang", "wrong_loss", "crash"), 1):
        failure = {"kind": kind, "message": "m", "phase": "p"}
        fields = {
            "number": number,
            "settings": {"xla_a": number},
            "origin": "x",
            "status": "failed",
            "failure": failure,
        }
        store.append(TrialResult.model_validate({**fields, "duration_s": 1.5}))
    store.close()
    data = json.loads(render_t4(store))
    assert [r["invalidity"] for r in data["results"]] == ["constraints", "compile", "timeout", "correctness", "runtime"]
    assert data["results"][0]["measurements"][0]["value"] == "unknown_flag"
    assert data["results"][0]["times"]["framework"] == 1500.0
    assert data["metadata"]["timeunit"] == "milliseconds"


@pytest.mark.parametrize("compress", [False, True])
def test_files_of_other_writers_are_read(tmp_path: Path, compress: bool) -> None:
    # As Kernel Tuner writes them: a class name stands for the value of what failed, `compilation` for its time.
    good = {
        "timestamp": "2023-12-22 09:54:05+00:00",
        "configuration": {"block": 16},
        "objectives": ["time"],
        "times": {"compilation": 9.5, "runtimes": [3.5, 3.25], "framework": 1, "search_algorithm": 0, "validation": 0},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [{"name": "time", "value": 3.375, "unit": ""}],
    }
    bad = {
        **good,
        "invalidity": "compile",
        "correctness": 0,
        "measurements": [{"name": "time", "value": "CompilationFailedConfig", "unit": ""}],
    }
    data = json.dumps({"schema_version": "1.0.0", "metadata": {"timeunit": "ms"}, "results": [good, bad]}).encode()
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(data) if compress else data)
    found = read_t4(path)
    assert [r.invalidity for r in found.results] == [Invalidity.CORRECT, Invalidity.COMPILE]
    frame = found.frame()
    assert frame["time"].iloc[0] == 3.375
    assert math.isnan(frame["time"].iloc[1])
    assert frame["runtimes"].iloc[0] == [3.5, 3.25]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "the file"),
        ('{"schema_version": "2.0.0", "results": []}', "schema_version"),
        (
            '{"results": [{"configuration": {}, "times": {}, "invalidity": "slow", "correctness": 1}]}',
            "results.0.invalidity",
        ),
        ('{"results": [{"times": {}, "invalidity": "correct", "correctness": 1}]}', "results.0.configuration"),
    ],
)
def test_illegal_files_are_refused_with_the_field(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(AutotuneError, match=f"schema 1.x but `{field}`"):
        read_t4(tmp_path / "x.json")


def test_torn_gzip_and_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"{}" * 99)[:20])
    for name in ("x.gz", "none"):
        with pytest.raises(AutotuneError, match="must be a readable T4 file"):
            read_t4(tmp_path / name)


def test_a_run_without_trials_has_no_t4(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    store.close()
    with pytest.raises(AutotuneError, match="must have trials"):
        render_t4(store)


@pytest.mark.slow
def test_published_spaces_are_read() -> None:
    files = sorted((Path(__file__).parents[2].parent / "shared/data/replay").glob("*_T4.json.gz"))
    if not files:
        pytest.skip("the recorded spaces are not on this machine")
    for file in files[:2]:
        frame = read_t4(file).frame()
        assert len(frame) > 4000
        assert frame["time"].notna().sum() == (frame["invalidity"] == "correct").sum()
