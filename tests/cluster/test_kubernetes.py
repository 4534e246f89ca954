"""The manifests that `autotune submit --k8s` shows, against Kubernetes' own schemas."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cluster.kubernetes import to_yaml
from tests.console import autotune

STUDY = """
name = "My.Study_7"
description = "it's $(quoted) \\"twice\\" # no comment"
[workload]
entry = "llama"
"""


def submit(folder: Path, *arguments: str, study: str = STUDY) -> subprocess.CompletedProcess[str]:
    (folder / "study.toml").write_text(study)
    return autotune("submit", "study.toml", "--k8s", *arguments, cwd=folder)


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
    documents = shown(tmp_path, *arguments)
    for document in documents:
        validate.validate(document, validate.latest_version(), strict=True)
    assert [(d["kind"], d["metadata"]["name"]) for d in documents] == [
        ("ConfigMap", "autotune-my-study-7"),
        ("Service", "autotune-my-study-7-driver"),
        ("Job", "autotune-my-study-7-driver"),
        ("Job", "autotune-my-study-7-worker"),
    ]
    assert documents[0]["data"]["study.toml"] == STUDY


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_schema_that_is_not_kept_is_seen(tmp_path: Path, which: int) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes are not installed")
    document = shown(tmp_path)[which]
    document["spec"]["paralelism"] = 2
    with pytest.raises(Exception, match="paralelism"):
        validate.validate(document, validate.latest_version(), strict=True)


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    [container] = job["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_each_pod_is_a_worker_whose_clean_stop_is_no_failure(tmp_path: Path) -> None:
    *_, job = shown(tmp_path, "--nodes", "3", "--gpus-per-node", "8", "--time", "2h", "--trials", "50")
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]
    container = container_of(job)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert container["command"][1:] == [
        "-m", "autotune", "worker", "--join", "tls://autotune-my-study-7-driver:8786", "--tls", "/etc/autotune-tls",
        "--patience", "7200s", "--name", "pod-$(WORKER)",
    ]  # fmt: skip
    assert container["env"][0]["name"] == "WORKER"
    assert "/dev/shm" in [m["mountPath"] for m in container["volumeMounts"]]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_only_the_driver_has_the_study_and_the_run_and_only_workers_have_gpus(tmp_path: Path) -> None:
    _, service, driver, worker = shown(tmp_path, "--gpus-per-node", "8", "--trials", "50")
    command = container_of(driver)["command"]
    assert command[3:7] == ["run", "/etc/autotune/study.toml", "--run-dir", "/shared/runs/My.Study_7"]
    assert command[7:] == [
        "--listen", "tls://0.0.0.0:8786", "--tls", "/etc/autotune-tls", "--trials", "50"
    ]  # fmt: skip
    assert "resources" not in container_of(driver)
    volumes = [{v["name"] for v in job["spec"]["template"]["spec"]["volumes"]} for job in (driver, worker)]
    assert volumes == [{"study", "run", "tls"}, {"tls", "memory"}]
    labels = [job["spec"]["template"]["metadata"]["labels"] for job in (driver, worker)]
    assert service["spec"]["selector"] == labels[0] != labels[1]
    assert service["spec"]["ports"][0]["port"] == 8786
    assert driver["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]


def test_trials_over_several_pods_are_gangs_of_workers(tmp_path: Path) -> None:
    *_, job = shown(tmp_path, "--nodes", "4", study=STUDY + "[device]\nnode_count = 2\n")
    assert job["spec"]["completions"] == 4


def test_the_certificate_is_made_but_is_in_no_manifest(tmp_path: Path) -> None:
    assert not list(tmp_path.glob("runs/*"))
    done = submit(tmp_path, "--image", "i")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.endswith("kubectl create secret generic autotune-my-study-7-tls --from-file=runs/My.Study_7.tls")
    assert first.startswith("#")
    folder = tmp_path / "runs" / "My.Study_7.tls"
    assert sorted(p.name for p in folder.iterdir()) == ["cert.pem", "key.pem"]
    assert "PRIVATE KEY" in (folder / "key.pem").read_text()
    assert "PRIVATE KEY" not in done.stdout
    assert [d["kind"] for d in yaml.safe_load_all(done.stdout)].count("Secret") == 0
    key = (folder / "key.pem").read_bytes()
    submit(tmp_path, "--image", "i")
    assert (folder / "key.pem").read_bytes() == key  # pods that run must not be shut out


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    shown(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["study.toml"]


def test_a_storage_s_url_comes_from_a_secret(tmp_path: Path) -> None:
    done = submit(tmp_path, "--dry-run", "--image", "i", "--storage", "postgresql://me:hunter2@db/x")
    assert "hunter2" not in done.stdout + done.stderr
    _, _, driver, worker = yaml.safe_load_all(done.stdout)
    [variable] = container_of(driver)["env"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "autotune-my-study-7-storage", "key": "url"}}
    assert variable["name"] not in str(worker)


def test_what_an_option_holds_is_not_filled_in_by_kubernetes(tmp_path: Path) -> None:
    _, _, driver, _ = shown(tmp_path, "--mount", "/mnt/$(HOME)")
    assert "/mnt/$$(HOME)/runs/My.Study_7" in container_of(driver)["command"]


@pytest.mark.parametrize(
    ("arguments", "study", "words"),
    [
        (["--dry-run"], STUDY, "needs --image"),
        (["--dry-run", "--image", "i", "--claim", "A b"], STUDY, "--claim must be a name"),
        (["--dry-run", "--image", "i", "--nodes", "3"], STUDY + "[device]\nnode_count = 2\n", "must be a multiple"),
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
