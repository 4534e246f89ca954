"""The manifests that `autotune submit --k8s` shows, against Kubernetes' own schemas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cluster.kubernetes import to_yaml

ROOT = Path(__file__).parents[2]
STUDY = """
name = "My.Study_7"
description = "it's $(quoted) \\"twice\\" # no comment"
[workload]
entry = "llama"
"""


def submit(folder: Path, *arguments: str, study: str = STUDY) -> subprocess.CompletedProcess[str]:
    (folder / "study.toml").write_text(study)
    return subprocess.run(
        [sys.executable, "-m", "autotune", "submit", "study.toml", "--k8s", *arguments], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def shown(folder: Path, *arguments: str, study: str = STUDY) -> list[dict[str, Any]]:
    done = submit(folder, "--dry-run", "--image", "registry.example/autotune:1", *arguments, study=study)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--nodes", "4", "--gpus-per-node", "8", "--time", "8h", "--grace", "90s", "--trials", "100"],
        ["--storage", "postgresql://me:hunter2@db/x", "--claim", "scratch", "--mount", "/mnt/a b", "--no-soak"],
    ],
)
def test_the_manifests_are_valid_for_kubernetes(tmp_path: Path, arguments: list[str]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    config, job = shown(tmp_path, *arguments)
    for document in (config, job):
        validate.validate(document, validate.latest_version(), strict=True)
    assert (config["kind"], job["kind"]) == ("ConfigMap", "Job")
    assert config["data"]["study.toml"] == STUDY
    assert job["metadata"]["name"] == config["metadata"]["name"] == "autotune-my-study-7"


def test_a_schema_that_is_not_kept_is_seen(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    _, job = shown(tmp_path)
    job["spec"]["paralelism"] = 2
    with pytest.raises(Exception, match="paralelism"):
        validate.validate(job, validate.latest_version(), strict=True)


def test_each_pod_is_a_worker_whose_clean_stop_is_no_failure(tmp_path: Path) -> None:
    _, job = shown(tmp_path, "--nodes", "3", "--gpus-per-node", "8", "--time", "2h", "--trials", "50")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]
    container = spec["template"]["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert container["command"][3:5] == ["worker", "/etc/autotune/study.toml"]
    assert container["command"][-4:] == ["--name", "pod-$(WORKER)", "--trials", "50"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_storage_s_url_comes_from_a_secret(tmp_path: Path) -> None:
    done = submit(tmp_path, "--dry-run", "--image", "i", "--storage", "postgresql://me:hunter2@db/x")
    assert "hunter2" not in done.stdout + done.stderr
    _, job = yaml.safe_load_all(done.stdout)
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env[1]["valueFrom"] == {"secretKeyRef": {"name": "autotune-my-study-7-storage", "key": "url"}}


@pytest.mark.parametrize(
    ("arguments", "study", "words"),
    [
        (["--dry-run"], STUDY, "needs --image"),
        (["--image", "i"], STUDY, "call this with --dry-run"),
        (["--dry-run", "--image", "i", "--claim", "A b"], STUDY, "--claim must be a name"),
        (["--dry-run", "--image", "i"], STUDY + "[device]\nnode_count = 2\n", "must fit into one pod"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: list[str], study: str, words: str) -> None:
    done = submit(tmp_path, *arguments, study=study)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "value",
    [
        "yes", "No", "null", "1.0", "0x1f", "1e3", "2026-11-21", "", " a", "a: b", "- a", "#c", "&a", "*a", "!t", "%d",
        "@x", "`x", "{a}", "[b]", "'q'", '"q"', "a\nb", "tab\t", "\x7f\x85\u2028", "é", "\U0001f600", "back\\slash",
        "$(x)", "true", "~", "=", "<<", 7, 1.5, True, None, [], {}, [[1, [2]], {"a": []}],
        {"a": {"b": [{"c": 1, "d": [2]}]}},
    ],
    ids=repr,
)  # fmt: skip
def test_yaml_gives_back_what_went_in(value: Any) -> None:
    document = {"key": value, "in list": [value, {"x": value}]}
    assert yaml.safe_load(to_yaml([document])) == document
    assert json.loads(json.dumps(yaml.safe_load(to_yaml([document])))) == document
