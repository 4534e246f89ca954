"""What `autotune submit` refuses, warns of and foretells before anything waits in a queue."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.cluster import JobRequest, Program, Runtime, estimate, idle_gpus, refuse_longer, render_script, warnings
from autotune.model import StudyFileError, StudySpec, parse_study

FOLDER = Path("/shared/me/project")


def spec_of(*, budget: str | None = None, platform: str = "cuda", **device: int) -> StudySpec:
    search = {} if budget is None else {"time_budget": budget}
    data = {"name": "s", "workload": {"entry": "llama"}, "device": {"platform": platform, **device}, "search": search}
    return parse_study(data)


def request_of(**more: Any) -> JobRequest:
    asked: dict[str, Any] = {"partition": "gpu", "nodes": 4, "gpus_per_node": 8, "time_s": 7200.0, "grace_s": 120.0}
    return JobRequest(**{**asked, **more})


def program_of(folder: Path = FOLDER) -> Program:
    return Program(python="python3", study=folder / "study.toml", run_dir=folder / "runs" / "s")


def script_of(spec: StudySpec, request: JobRequest, program: Program | None = None) -> str:
    return render_script(spec, request, program or program_of(), with_storage=False)


@pytest.mark.parametrize(("budget", "fits"), [("1h", True), ("1h58m", True), ("1h58m1s", False), ("8h", False)])
def test_a_budget_that_the_job_would_cut_off_is_refused(budget: str, fits: bool) -> None:
    spec = spec_of(budget=budget)
    script_of(spec, request_of(requeue=True))  # it goes on in the next job
    if fits:
        script_of(spec, request_of())
        return
    with pytest.raises(StudyFileError, match=r"must fit into --time less --grace, 1 h 58 min, but got .*--requeue"):
        script_of(spec, request_of())


def test_what_the_refusal_says_to_ask_for_is_enough() -> None:
    spec = spec_of(budget="8h")
    with pytest.raises(StudyFileError, match="--time 0-08:02:00"):
        script_of(spec, request_of())
    script_of(spec, request_of(time_s=8 * 3600 + 120.0))
    with pytest.raises(StudyFileError, match="--time"):
        refuse_longer(spec, 8 * 3600 - 1.0, 0.0)


@pytest.mark.parametrize(
    ("device", "nodes", "gpus", "words"),
    [
        ({"count": 8}, 4, 8, None),
        ({}, 4, 8, None),  # a trial takes all that it sees
        ({"count": 16, "node_count": 2}, 4, 8, None),
        ({"count": 1}, 4, 8, "28 of 32 GPUs would stand idle: each node runs one trial"),
        ({"count": 8, "node_count": 2}, 4, 8, "16 of 32 GPUs would stand idle: each group of 2 nodes"),
        ({"count": 8, "node_count": 2}, 4, 4, None),
        ({"platform": "cpu"}, 2, 8, "all 16 GPUs would stand idle"),
        ({"platform": "cpu"}, 2, None, None),
    ],
)
def test_idle_gpus_are_told_of(device: dict[str, Any], nodes: int, gpus: int | None, words: str | None) -> None:
    told = idle_gpus(spec_of(**device), nodes, gpus)
    assert (told == []) if words is None else (len(told) == 1 and words in told[0])


def test_what_a_warning_of_idle_gpus_advises_leaves_none_idle() -> None:
    spec = spec_of(count=6, node_count=2)
    [told] = idle_gpus(spec, 4, 8)
    assert "--gpus-per-node 3" in told
    assert "`device.count = 16`" in told
    assert idle_gpus(spec, 4, 3) == []
    assert idle_gpus(spec_of(count=16, node_count=2), 4, 8) == []


@pytest.mark.parametrize(
    ("mounts", "runtime", "told"),
    [
        (None, "pyxis", 2),
        ("/shared:/shared", "pyxis", 0),
        ("/shared", "pyxis", 0),
        ("/shared/me:/shared/me:rw,/data:/data", "pyxis", 0),
        ("/shared/me/project/:/shared/me/project/", "pyxis", 0),
        ("/shared/m:/shared/m", "pyxis", 2),  # the beginning of a name is no folder above it
        ("/shared:/work", "pyxis", 2),  # it is there, but not under that name
        ("/scratch/me:/shared/me", "pyxis", 2),  # the name is there, but it is another folder
        ("/shared:/shared,/scratch:/shared/me/project/runs", "pyxis", 1),  # the innermost is what is seen
        ("/shared:/shared", "apptainer", 0),
        (None, "apptainer", 2),
    ],
)
def test_paths_that_a_container_does_not_show_are_told_of(mounts: str | None, runtime: Runtime, told: int) -> None:
    request = request_of(container_image="image", container_mounts=mounts, container_runtime=runtime)
    found = warnings(spec_of(count=8), request, program_of())
    assert len(found) == told
    assert all("--container-mounts" in text for text in found)


def test_apptainer_shows_the_home_folder_by_itself_and_nobody_warns_without_a_container() -> None:
    here = program_of(Path.home() / "project")
    request = request_of(container_image="image.sif", container_runtime="apptainer")
    assert warnings(spec_of(count=8), request, here) == []
    assert len(warnings(spec_of(count=8), request_of(container_image="image"), here)) == 2
    assert warnings(spec_of(count=8), request_of(), program_of()) == []


@pytest.mark.parametrize(
    ("budget", "gpus", "requeue", "words"),
    [
        (None, 8, False, "takes at most 64.0 GPU-hours (4 nodes x 8 GPUs x 2 h 0 min)"),
        (None, None, False, "takes at most 8.0 node-hours (4 nodes x 2 h 0 min)"),
        ("30m", 8, False, "; the study's time budget of 30 min 0 s is 16.0 of them"),
        (
            "3h",
            8,
            True,
            "each job takes at most 64.0 GPU-hours (4 nodes x 8 GPUs x 2 h 0 min); the study's time budget ",
        ),
        ("3h", 8, True, " is 96.0 GPU-hours in all"),
    ],
)
def test_gpu_hours_are_foretold(budget: str | None, gpus: int | None, requeue: bool, words: str) -> None:
    assert words in estimate(spec_of(budget=budget), nodes=4, gpus_per_node=gpus, time_s=7200.0, requeue=requeue)


# ---------------------------------------------------------------------- set-up lines and containers


def run_script(text: str, folder: Path, *, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a batch script where SLURM's and others' programs are these."""
    (folder / "bin").mkdir()
    for name, body in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    return subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True, check=False, timeout=30)


def test_set_up_lines_reach_the_driver_and_one_that_fails_ends_the_job(tmp_path: Path) -> None:
    lines = ("module() { export LOADED=$2; }", "module load cuda/12  # {{ not jinja }}", "export B=${UNSET_HERE:-two}")
    says = {"driver": 'echo "driver $1 $2 $LOADED $B"'}
    program = Program(python="driver", study=tmp_path / "study.toml", run_dir=tmp_path / "run")
    done = run_script(script_of(spec_of(count=8), request_of(setup=lines), program), tmp_path, programs=says)
    assert (done.returncode, done.stdout) == (0, "driver -m autotune cuda/12 two\n"), done.stderr
    (tmp_path / "again").mkdir()
    broken = script_of(spec_of(count=8), request_of(setup=("no-such-program --x", "echo on")), program)
    done = run_script(broken, tmp_path / "again", programs=says)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the set-up failed: no-such-program --x" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo 'open", "must be bash"),
        ("export WANDB_API_KEY=0123456789abcdef", "must hold no secret"),
        ("echo \x1b[2J", "control character"),
    ],
)
def test_a_set_up_line_that_breaks_the_script_is_refused(line: str, words: str) -> None:
    with pytest.raises(StudyFileError, match=words) as caught:
        script_of(spec_of(count=8), request_of(setup=(line,)))
    assert "0123456789abcdef" not in str(caught.value)
    script_of(spec_of(count=8), request_of(setup=("export WANDB_API_KEY=$MY_KEY",)))


def test_apptainer_starts_driver_and_workers_inside_the_image(tmp_path: Path) -> None:
    """A run of the script itself, with an srun and an apptainer that do what theirs do with their arguments."""
    srun = 'while [[ $1 == --* ]]; do case $1 in --container*) exit 9;; esac; shift; done; exec "$@"'
    apptainer = 'shift; while [[ $1 == --* ]]; do options+=" $1"; shift; done; echo "in $1:$options: ${*:2}"'
    apptainer += '; case "$*" in *" autotune run "*) sleep 1;; esac'  # else it ends before a worker has begun
    request = request_of(
        container_image="/images/a b.sif", container_mounts="/data:/data", container_runtime="apptainer"
    )
    program = Program(python="python3", study=tmp_path / "study.toml", run_dir=tmp_path / "run")
    done = run_script(
        script_of(spec_of(count=8), request, program), tmp_path, programs={"srun": srun, "apptainer": apptainer}
    )
    assert done.returncode == 0, done.stderr
    scheduler, driver, worker = sorted(done.stdout.splitlines())
    inside, file = "--bind=/data:/data: python3 -m", f"--scheduler-file {tmp_path}/run.scheduler.json"
    assert scheduler.startswith(f"in /images/a b.sif: {inside} dask scheduler {file} --protocol tls")
    inside = f"in /images/a b.sif: --nv {inside}"
    assert driver == f"{inside} autotune run {tmp_path}/study.toml --run-dir {tmp_path}/run {file}"
    assert worker.startswith(f"{inside} dask worker {file} --protocol tls")
    assert worker.endswith("--resources GPU=8 --name n1")
    assert not (tmp_path / "run.tls").exists()


def test_pyxis_gets_its_image_through_srun() -> None:
    text = script_of(spec_of(count=8), request_of(container_image="image", container_mounts="/a:/a"))
    assert text.count("--container-image=image --container-mounts=/a:/a") == 3
    assert "apptainer" not in text
