"""A study as a Kubernetes Job: one pod for each worker, one shared volume, restarts that go on where a pod was stopped.

The manifest is data: shown for a person to apply, never applied here. The study travels in a ConfigMap, the run
directory lies on a volume that all pods share, and a storage's URL comes from a Secret.

References:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from autotune.cluster.submit import STORAGE_VARIABLE
from autotune.model import STOPPED, StudyFileError, StudySpec, strike_text, struck_names

STUDY_FOLDER = "/etc/autotune"
RETRIES = 3
"""How often one worker's pod may fail for good reasons of its own; evictions and clean stops do not count."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What is asked of the cluster.

    Attributes:
        image: What the workers run in; it has autotune and the workload installed.
        python: Its interpreter.
        nodes: Workers, each a pod of its own.
        gpus_per_node: GPUs of each pod.
        time_s: Longest wall time, seconds.
        grace_s: How long a pod has to stop cleanly.
        claim: Name of the PersistentVolumeClaim that all pods share (ReadWriteMany).
        mount: Where it is mounted.
        run_dir: Run directory below `mount`.
        options: Options of `autotune worker`.
        with_storage: Whether the URL of a storage comes from a Secret.
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


def manifests(spec: StudySpec, study_text: str, request: PodRequest) -> list[dict[str, Any]]:
    """The ConfigMap that holds the study, and the Job.

    Raises:
        StudyFileError: If the study cannot run as pods that know nothing of each other, or holds a secret.
    """
    _refuse_secrets(spec, study_text)
    if spec.device.node_count > 1:
        raise StudyFileError(
            "a trial on Kubernetes must fit into one pod but the study has `device.node_count = "
            f"{spec.device.node_count}`; run it under SLURM, or lower `device.node_count`"
        )
    if not _NAME.fullmatch(request.claim):
        raise StudyFileError(f"--claim must be a name as Kubernetes has them but got {request.claim!r}")
    name = _name(f"autotune-{spec.name}")
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"study.toml": study_text},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "autotune"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimitPerIndex": RETRIES,
            "activeDeadlineSeconds": int(request.time_s),
            "podFailurePolicy": {
                "rules": [
                    # Told to stop before the end, or moved off its node: there is more to do, and nothing failed.
                    {
                        "action": "Ignore",
                        "onExitCodes": {"containerName": "worker", "operator": "In", "values": [STOPPED]},
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": _pod(name, request),
        },
    }
    return [config, job]


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


def _pod(name: str, request: PodRequest) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": request.gpus_per_node} if request.gpus_per_node else {}
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    env: list[dict[str, Any]] = [{"name": "WORKER", "valueFrom": index}]
    if request.with_storage:
        secret = {"secretKeyRef": {"name": f"{name}-storage", "key": "url"}}
        env.append({"name": STORAGE_VARIABLE, "valueFrom": secret})
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "autotune"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": int(request.grace_s),
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "worker",
                    "image": request.image,
                    # Kubernetes fills in $(WORKER) itself; no shell reads this.
                    "command": [
                        request.python, "-m", "autotune", "worker", f"{STUDY_FOLDER}/study.toml",
                        "--run-dir", f"{request.mount}/{request.run_dir}", "--name", "pod-$(WORKER)",
                        *(o.replace("$(", "$$(") for o in request.options),
                    ],
                    "env": env,
                    "resources": {"limits": gpus} if gpus else {},
                    "securityContext": {"allowPrivilegeEscalation": False},
                    "volumeMounts": [
                        {"name": "study", "mountPath": STUDY_FOLDER, "readOnly": True},
                        {"name": "shared", "mountPath": request.mount},
                        {"name": "memory", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                {"name": "study", "configMap": {"name": name}},
                {"name": "shared", "persistentVolumeClaim": {"claimName": request.claim}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }  # fmt: skip


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


def _name(text: str) -> str:
    """A study's name as Kubernetes takes names: lower case, digits and hyphens, at most 50."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[:50].strip("-")
