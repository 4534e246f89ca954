"""What a study on Kubernetes carries: its program runs in an empty folder that holds these files and nothing else."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cluster import PodRequest, carried_files, manifests
from autotune.model import StudyFileError, StudySpec, parse_study

READ = {"pattern": r"(?P<step_ms>\d+)"}


def spec_of(*command: str, entry: str | None = None, **workload: Any) -> StudySpec:
    what: dict[str, Any] = {"entry": entry} if entry else {"command": [*command], "read": READ}
    return parse_study({"name": "s", "workload": {**what, **workload}})


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study with a program of several files beside it, and much that is not the program's."""
    for name, text in {
        "study.toml": "",
        "train.py": "import sys, helper\nfrom pkg.sub import deep\nprint(helper.X, deep.Y, open(sys.argv[1]).read())",
        "helper.py": "import other\nX = other.X",
        "other.py": "X = 1",
        "pkg/__init__.py": "",
        "pkg/sub/__init__.py": "",
        "pkg/sub/deep.py": "from . import near\nfrom ..top import Z\nY = near.Y + Z",
        "pkg/sub/near.py": "Y = 2",
        "pkg/top.py": "Z = 3",
        "pkg/unused.py": "",
        "configs/a.yaml": "lr: 1",
        "configs/.hidden": "",
        "run.sh": '#!/bin/sh\nexec "$PYTHON" train.py configs/a.yaml\n',
        "unused.py": "",
        "model.py": "def build(**options): ...",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "study.toml"


PROGRAM = {
    "train.py", "helper.py", "other.py", "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/deep.py", "pkg/sub/near.py",
    "pkg/top.py", "configs/a.yaml",
}  # fmt: skip


def unpacked(documents: list[dict[str, Any]], folder: Path) -> Path:
    """A folder as the worker's pod sees it: each mount a file of the ConfigMap, and nothing else."""
    config, *_, job = documents
    stored = {k: v.encode() for k, v in config["data"].items()}
    stored |= {k: base64.b64decode(v) for k, v in config.get("binaryData", {}).items()}
    for mount in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] == "study":
            place = folder / Path(mount["mountPath"]).relative_to("/etc/autotune")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(stored[mount["subPath"]])
    return folder


def shown(spec: StudySpec, study: Path, *more: str) -> list[dict[str, Any]]:
    request = PodRequest(
        image="i", python="python3", nodes=1, gpus_per_node=8, time_s=60.0, grace_s=1.0, claim="c", mount="/m",
        run_dir="r", files=carried_files(spec, study, more),
    )  # fmt: skip
    return manifests(spec, "", request)


def test_a_program_runs_with_what_is_carried_and_nothing_else(
    study: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = spec_of("python", "train.py", "configs/a.yaml")
    assert set(carried_files(spec, study)) == PROGRAM
    pod = unpacked(shown(spec, study), tmp_path_factory.mktemp("pod"))
    done = subprocess.run(
        [sys.executable, "train.py", "configs/a.yaml"], cwd=pod, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1 5 lr: 1\n", done.stderr


@pytest.mark.parametrize(
    ("spec", "more", "found"),
    [
        (spec_of("./run.sh"), (), {"run.sh"}),
        (spec_of("./run.sh"), ("train.py", "configs"), {"run.sh", *PROGRAM}),  # no hidden files of a folder
        (spec_of("python", "-m", "pkg.top"), (), {"pkg/__init__.py", "pkg/top.py"}),
        (spec_of("python", "/opt/train.py", "--x=configs/a.yaml"), (), {"configs/a.yaml"}),
        (
            spec_of("python", "-m", "maxtext.train", "--out", "out.json", "batch={batch}", options={"batch": 1}),
            (),
            set(),
        ),
        (spec_of(entry="model:build"), (), {"model.py"}),
        (spec_of(entry="installed.package:build"), (), set()),
        (spec_of(entry="llama"), (), set()),
    ],
)
def test_what_is_carried(study: Path, spec: StudySpec, more: tuple[str, ...], found: set[str]) -> None:
    assert set(carried_files(spec, study, more)) == found


def test_files_that_are_no_text_arrive_as_they_are(study: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    contents = {"a.bin": bytes(range(256)), "a-b.txt": b"one\r\n", "a/b.txt": "é\u2028\n".encode(), "empty": b""}
    for name, content in contents.items():
        (study.parent / name).parent.mkdir(exist_ok=True)
        (study.parent / name).write_bytes(content)
    documents = shown(spec_of("cat", *contents), study)
    pod = unpacked(documents, tmp_path_factory.mktemp("pod"))
    assert {n: (pod / n).read_bytes() for n in contents} == contents


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("python", "trian.py"), "`trian.py` of the command is not there"),
        (("./go",), "`./go` of the command is not there"),
        (("python", "../elsewhere.py"), "`../elsewhere.py` of the command leads out of there"),
        (("python", "FOLDER/train.py"), "is absolute"),
        (("python", "large.py"), "must have at most 900,000 bytes together but have 900,001"),
        (("python", "leaks.py"), "leaks.py, line 2, has the shape of one"),
    ],
)
def test_what_cannot_be_carried_is_refused(study: Path, command: tuple[str, ...], words: str) -> None:
    (study.parent.parent / "elsewhere.py").write_text("")
    (study.parent / "large.py").write_text("#" * 900_001)
    (study.parent / "leaks.py").write_text(
        "x = 1\nAPI_KEY = 'abc'\nwandb_api_key='0123456789abcdef'\n".replace(" = '", "='")
    )
    spec = spec_of(*(part.replace("FOLDER", str(study.parent)) for part in command))
    with pytest.raises(StudyFileError, match="must") as caught:
        carried_files(spec, study)
    assert words in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


def test_a_second_study_file_is_refused(study: Path) -> None:
    with pytest.raises(StudyFileError, match=r"the only study\.toml"):
        shown(spec_of("cat", "study.toml"), study.with_name("other.toml"))
