"""Whether a study fits what is asked of the cluster for it, and what it costs at most: told before anything waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from autotune.cluster.job_request import JobRequest, Program, format_time
from autotune.model import StudyFileError, StudySpec, format_seconds

LONGEST_GRACE_S = 65_535


def check_request(spec: StudySpec, request: JobRequest) -> None:
    """Refuses a job in which the study cannot run.

    Raises:
        StudyFileError: If the nodes do not divide into groups that a trial spans, their GPUs do not suffice, the job
            would end before the study's time budget, or is of a kind that has no such groups.
    """
    device = spec.device
    if request.is_dask and device.node_count > 1:
        raise StudyFileError(
            f"lanes of an array or in containers are single nodes but a trial of this study spans {device.node_count}; "
            "leave out --array and --container-image"
        )
    if request.nodes % device.node_count:
        raise StudyFileError(
            f"--nodes must be a multiple of the study's `device.node_count = {device.node_count}` but got "
            f"{request.nodes}; nodes that no trial can use would only wait"
        )
    if device.platform == "cuda":
        gpus = (request.gpus_per_node or 0) * device.node_count
        if gpus < (device.count or device.node_count):
            raise StudyFileError(
                f"--gpus-per-node must give each trial its GPUs but a trial of {device.node_count} nodes has {gpus} "
                f"and the study asks for {device.count or 'at least one on each node'}"
            )
    if not 1 <= request.grace_s <= LONGEST_GRACE_S or request.grace_s >= request.time_s:
        raise StudyFileError(
            f"--grace must be shorter than --time and at most {LONGEST_GRACE_S} s but got {request.grace_s:.0f} s of "
            f"{request.time_s:.0f} s"
        )
    if not request.requeue:
        refuse_longer(spec, request.time_s, request.grace_s, more=", or let it go on in the next job with --requeue")


def refuse_longer(spec: StudySpec, time_s: float, grace_s: float, *, more: str = "") -> None:
    """Refuses a study that would be cut off: what its time budget keeps back for the proof comes last.

    Args:
        spec: The study, with the time budget of the call if that has one.
        time_s: How long the job may run, in seconds.
        grace_s: How long before its end it is told to stop.
        more: What else can be done about it.

    Raises:
        StudyFileError: If the time budget is longer than the job's time less its grace.
    """
    budget_s = spec.search.time_budget
    if budget_s is not None and budget_s > time_s - grace_s:
        raise StudyFileError(
            f"the time budget must fit into --time less --grace, {format_seconds(time_s - grace_s)}, but got "
            f"{format_seconds(budget_s)}: the job would end before the proof, for which the study keeps time back; ask "
            f"for --time {format_time(budget_s + grace_s)}, lower --time-budget{more}"
        )


def gpus_in_use(spec: StudySpec, nodes: int, gpus_per_node: int) -> int:
    """How many GPUs work at a time: those of one trial on each group of nodes that a trial spans."""
    device = spec.device
    if device.platform != "cuda":
        return 0
    of_group = gpus_per_node * device.node_count
    return nodes // device.node_count * min(device.count or of_group, of_group)


def idle_gpus(spec: StudySpec, nodes: int, gpus_per_node: int | None) -> list[str]:
    """Says which share of the GPUs would be paid for and never used; nothing where all are."""
    given = nodes * (gpus_per_node or 0)
    used = gpus_in_use(spec, nodes, gpus_per_node or 0)
    if used >= given:
        return []
    if used == 0:
        return [
            f'all {given} GPUs would stand idle, for the study says `device.platform = "cpu"`; leave --gpus-per-node '
            "out"
        ]
    device = spec.device
    where = "each node" if device.node_count == 1 else f"each group of {device.node_count} nodes"
    least = -(-(device.count or 1) // device.node_count)
    advice = f"ask for --gpus-per-node {least}, or set `device.count = {(gpus_per_node or 0) * device.node_count}`"
    return [
        f"{given - used} of {given} GPUs would stand idle: {where} runs one trial at a time, of `device.count = "
        f"{device.count}`; {advice}"
    ]


def unmounted(request: JobRequest, program: Program) -> list[str]:
    """Says which paths of the study the container would not show under their names, or with other content."""
    if request.container_image is None:
        return []
    shown = list(_mounts(request.container_mounts or ""))
    if request.container_runtime == "apptainer":  # mounts these by itself, unless its administrator forbids it
        shown += [(Path(p), Path(p)) for p in (Path.home(), Path.cwd(), Path("/tmp"))]
    told = []
    for what, path in (("the study's folder", program.study.parent), ("the run directory", program.run_dir.parent)):
        inner = [(outer, inside) for outer, inside in shown if path.is_relative_to(inside)]
        # Of mounts within each other the innermost is what is seen.
        best = max(inner, key=lambda pair: len(pair[1].parts), default=None)
        if best is None or best[0] / path.relative_to(best[1]) != path:
            told.append(
                f"{what}, {path}, is not mounted in the container under that name; add "
                f"--container-mounts {path}:{path}, unless your cluster mounts it by itself"
            )
    return told


def _mounts(text: str) -> Iterator[tuple[Path, Path]]:
    """Folders outside and inside of a container, of ``A:B:ro,C``; one name alone is both."""
    for mount in filter(None, text.split(",")):
        outer, _, rest = mount.partition(":")
        yield _normal(outer), _normal(rest.partition(":")[0] or outer)


def _normal(path: str) -> Path:
    return Path(os.path.normpath(PurePosixPath(path)))


def warnings(spec: StudySpec, request: JobRequest, program: Program) -> list[str]:
    """What would work but is hardly meant."""
    return [*idle_gpus(spec, request.nodes, request.gpus_per_node), *unmounted(request, program)]


def estimate(spec: StudySpec, *, nodes: int, gpus_per_node: int | None, time_s: float, requeue: bool) -> str:
    """What the job takes at most, in words: GPU-hours, or hours of nodes where no GPU is asked for.

    Args:
        spec: The study, with the time budget of the call if that has one.
        nodes: Nodes in all.
        gpus_per_node: GPUs of each; None for none.
        time_s: Longest wall time of the job, in seconds.
        requeue: Whether the job may start again when its time is up.
    """
    units, what = nodes * (gpus_per_node or 1), "GPU-hours" if gpus_per_node else "node-hours"
    gpus = f" x {gpus_per_node} GPUs" if gpus_per_node else ""
    most = (
        f"{'each job takes' if requeue else 'takes'} at most {units * time_s / 3600:.1f} {what} ({nodes} nodes{gpus} x "
    )
    most += f"{format_seconds(time_s)})"
    if (budget_s := spec.search.time_budget) is not None:
        most += f"; the study's time budget of {format_seconds(budget_s)} is {units * budget_s / 3600:.1f} of them"
        most = most.replace(" of them", f" {what} in all") if requeue else most
    return most
