"""A study on Kubernetes: one pod that drives it, and a Job of workers that join its pool and may come and go.

The manifests are data: shown for a person to apply, never applied here. The study and its files travel in a ConfigMap,
the run directory lies on a volume that only the driver's pod mounts, the certificate of the pool and a storage's URL
come from Secrets. Workers know nothing of the study but its files: they join, get units, and end with it.

References:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://kubernetes.io/docs/concepts/services-networking/service/
"""

from __future__ import annotations

import base64
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotune.cluster.carried_files import is_text
from autotune.cluster.fit import refuse_longer
from autotune.cluster.submit import STORAGE_VARIABLE
from autotune.model import STOPPED, StudyFileError, StudySpec, strike_text, struck_names

STUDY_FOLDER = "/etc/autotune"
STUDY_FILE = "study.toml"
TLS_FOLDER = "/etc/autotune-tls"
PORT = 8786
RETRIES = 3
"""How often a pod may fail for good reasons of its own; evictions and clean stops do not count."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What is asked of the cluster.

    Attributes:
        image: What all pods run; it has autotune and the workload installed.
        python: Its interpreter.
        nodes: Workers, each a pod of its own.
        gpus_per_node: GPUs of each worker's pod.
        time_s: Longest wall time, seconds.
        grace_s: How long a pod has to stop cleanly.
        claim: Name of the PersistentVolumeClaim for the driver's pod (ReadWriteOnce suffices).
        mount: Where it is mounted.
        run_dir: Run directory below `mount`.
        options: Options of `autotune run`.
        with_storage: Whether the URL of a storage comes from a Secret.
        files: What the study's program needs beside the study file, see `carried_files`: path to content.
    """

    image: str
    python: str
    nodes: int
    gpus_per_node: int | None
    time_s: float
    grace_s: float
    claim: str
    mount: str
    run_dir: str
    options: tuple[str, ...] = ()
    with_storage: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """What each file is called in the ConfigMap, whose keys have no folders, by its path."""
        return {path: f"{n}-{re.sub('[^A-Za-z0-9._-]', '-', path)[-200:]}" for n, path in enumerate(self.files)}


def manifests(spec: StudySpec, study_text: str, request: PodRequest) -> list[dict[str, Any]]:
    """The ConfigMap that holds the study, the driver's Service and Job, and the Job of the workers.

    Raises:
        StudyFileError: If the claim has no name as Kubernetes has them, no trial fits the workers, the pods would end
            before the study's time budget, or the study holds a secret.
    """
    _refuse_secrets(spec, study_text)
    refuse_longer(spec, request.time_s, 0.0)
    if STUDY_FILE in request.files:
        raise StudyFileError(
            f"the study's own file must be the only {STUDY_FILE} but its program has one, too; rename it"
        )
    if not _NAME.fullmatch(request.claim):
        raise StudyFileError(f"--claim must be a name as Kubernetes has them but got {request.claim!r}")
    if request.nodes % spec.device.node_count:
        raise StudyFileError(
            f"--nodes must be a multiple of the study's `device.node_count = {spec.device.node_count}` but got "
            f"{request.nodes}; pods that no trial can use would only wait"
        )
    name = pods_name(spec)
    texts = {request.keys[p]: content.decode() for p, content in request.files.items() if is_text(content)}
    binary = {
        request.keys[p]: base64.b64encode(content).decode()
        for p, content in request.files.items()
        if not is_text(content)
    }
    config = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(name),
        "data": {STUDY_FILE: study_text, **texts}, **({"binaryData": binary} if binary else {}),
    }  # fmt: skip
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, "driver"),
        "spec": {"selector": _labels(name, "driver"), "ports": [{"name": "pool", "port": PORT, "protocol": "TCP"}]},
    }
    driver = _job(name, "driver", request, {"backoffLimit": RETRIES}, _driver(name, request))
    once_each = {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
        "backoffLimitPerIndex": RETRIES,
    }
    return [config, service, driver, _job(name, "worker", request, once_each, _worker(name, request))]


def pods_name(spec: StudySpec) -> str:
    """What all objects of a study are called after: lower case, digits and hyphens, at most 50."""
    return re.sub(r"[^a-z0-9-]+", "-", f"autotune-{spec.name}".lower())[:50].strip("-")


def secret_command(spec: StudySpec, tls: Path) -> str:
    """What a person types once, to give the cluster the pool's certificate, which is a secret and in no manifest."""
    return shlex.join(["kubectl", "create", "secret", "generic", f"{pods_name(spec)}-tls", f"--from-file={tls}"])


def _labels(name: str, part: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "autotune",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": part,
    }


def _metadata(name: str, part: str = "") -> dict[str, Any]:
    if not part:
        return {"name": name}
    return {"name": f"{name}-{part}", "labels": _labels(name, part)}


def _job(name: str, part: str, request: PodRequest, how: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """A Job of pods that go on where they were stopped."""
    stopped = {"containerName": part, "operator": "In", "values": [STOPPED]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, part),
        "spec": {
            **how,
            "activeDeadlineSeconds": int(request.time_s),
            "podFailurePolicy": {
                "rules": [
                    # Told to stop before the end, or moved off its node: there is more to do, and nothing failed.
                    {"action": "Ignore", "onExitCodes": stopped},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {
                "metadata": {"labels": _labels(name, part)},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": int(request.grace_s),
                    "automountServiceAccountToken": False,
                    **pod,
                },
            },
        },
    }


def _refuse_secrets(spec: StudySpec, study_text: str) -> None:
    """Refuses a study that would carry secrets into a ConfigMap, for all who may look at the namespace can read it.

    Raises:
        StudyFileError: If its workload holds one, or the file anywhere has the shape of one; the message has no value.
    """
    names = [*struck_names(spec.workload.shown.command), *struck_names(spec.workload.shown.options)]
    lines = [n for n, line in enumerate(study_text.splitlines(), start=1) if strike_text(line) != line]
    if names or lines:
        where = ", ".join(names) or f"line {', '.join(map(str, lines))}"
        raise StudyFileError(
            f"a study on Kubernetes travels in a ConfigMap, so it must hold no secret, but it does ({where}); put it "
            "into a Secret, add that to the container as an environment variable (`secretKeyRef`), and let the program "
            "read the variable: it is inherited and never recorded"
        )


def _driver(name: str, request: PodRequest) -> dict[str, Any]:
    env: list[dict[str, Any]] = []
    if request.with_storage:
        secret = {"secretKeyRef": {"name": f"{name}-storage", "key": "url"}}
        env.append({"name": STORAGE_VARIABLE, "valueFrom": secret})
    command = [
        request.python, "-m", "autotune", "run", f"{STUDY_FOLDER}/{STUDY_FILE}",
        "--run-dir", f"{request.mount}/{request.run_dir}",
        "--listen", f"tls://0.0.0.0:{PORT}", "--tls", TLS_FOLDER, *request.options,
    ]  # fmt: skip
    volumes = {
        "study": (STUDY_FOLDER, _study_volume(name)),
        "run": (request.mount, {"persistentVolumeClaim": {"claimName": request.claim}}),
        "tls": (TLS_FOLDER, {"secret": {"secretName": f"{name}-tls"}}),
    }
    return _pod("driver", request, command, env, volumes)


def _worker(name: str, request: PodRequest) -> dict[str, Any]:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    command = [
        request.python, "-m", "autotune", "worker", "--join", f"tls://{name}-driver:{PORT}", "--tls", TLS_FOLDER,
        "--patience", f"{int(request.time_s)}s", "--name",
    ]  # fmt: skip
    volumes = {
        "tls": (TLS_FOLDER, {"secret": {"secretName": f"{name}-tls"}}),
        "memory": ("/dev/shm", {"emptyDir": {"medium": "Memory"}}),
    }
    if request.files:
        volumes["study"] = (STUDY_FOLDER, _study_volume(name))
    pod = _pod("worker", request, command, [{"name": "WORKER", "valueFrom": index}], volumes)
    container = pod["containers"][0]
    container["command"].append("pod-$(WORKER)")  # Kubernetes fills in $(WORKER) itself; no shell reads this
    if request.gpus_per_node:
        container["resources"] = {"limits": {"nvidia.com/gpu": request.gpus_per_node}}
    return pod


def _study_volume(name: str) -> dict[str, Any]:
    return {"configMap": {"name": name, "defaultMode": 0o555}}  # a program may be a script


def _study_mounts(part: str, request: PodRequest) -> list[dict[str, Any]]:
    """Each file by itself: of a ConfigMap mounted whole, files are links into a folder that each pod names anew."""
    own = {STUDY_FILE: STUDY_FILE} if part == "driver" else {}
    return [
        {"name": "study", "mountPath": f"{STUDY_FOLDER}/{path}", "subPath": key, "readOnly": True}
        for path, key in (own | request.keys).items()
    ]


def _pod(
    part: str,
    request: PodRequest,
    command: list[str],
    env: list[dict[str, Any]],
    volumes: dict[str, tuple[str, dict[str, Any]]],
) -> dict[str, Any]:
    """One container; `volumes` has where each is mounted, and what it is."""
    mounts = _study_mounts(part, request) if "study" in volumes else []
    mounts += [
        {"name": n, "mountPath": where, **({"readOnly": True} if n == "tls" else {})}
        for n, (where, _) in volumes.items()
        if n != "study"
    ]
    container: dict[str, Any] = {
        "name": part,
        "image": request.image,
        "command": [word.replace("$(", "$$(") for word in command],
        **({"env": env} if env else {}),
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": mounts,
    }
    return {"containers": [container], "volumes": [{"name": n, **what} for n, (_, what) in volumes.items()]}


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """Documents as YAML that every reader takes alike, whichever version of YAML it knows."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that another reader could take for a number or a truth (``1e3`` and ``y``: Go's YAML does)."""

    def ignore_aliases(self, data: Any) -> bool:
        """Nothing is written as a reference to an equal part."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Text of several lines as a block, words as they are, all else in quotes."""
        is_plain = _PLAIN.fullmatch(data) is not None and data.lower() not in ("y", "n")
        is_block = "\n" in data and data.replace("\n", "").isprintable()
        style = "|" if is_block else None if is_plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
