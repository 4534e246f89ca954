"""What `autotune submit` refuses, warns of and foretells before anything waits in a queue."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.cluster.submit import JobRequest, Program, estimate, render_script
from autotune.model.errors import StudyFileError
from autotune.model.spec import StudySpec, parse_study
from tests.console import autotune
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
FOLDER = Path("/shared/me/project")


def spec_of(*, budget: str | None = None, platform: str = "cuda", **device: int) -> StudySpec:
    search = {} if budget is None else {"time_budget": budget}
    data = {"name": "s", "workload": {"entry": "llama"}, "device": {"platform": platform, **device}, "search": search}
    return parse_study(data)


def request_of(**more: Any) -> JobRequest:
    asked: dict[str, Any] = {"partition": "gpu", "nodes": 4, "gpus_per_node": 8, "time_s": 7200.0, "grace_s": 120.0}
    asked |= {"requeue": False, "exclusive": True, "sbatch": (), "srun": (), "setup": ()}
    return JobRequest(**{**asked, **more})


def program_of(folder: Path = FOLDER) -> Program:
    return called("python3", folder / "study.toml", folder / "runs" / "s")


def called(python: str, study: Path, run_dir: Path) -> Program:
    return Program(python=python, arguments=("run", str(study)), run_dir=run_dir)


def script_of(spec: StudySpec, request: JobRequest, program: Program | None = None) -> str:
    return render_script(spec, request, program or program_of(), with_storage=False)


@pytest.mark.parametrize(("budget", "fits"), [("1h", True), ("1h58m", True), ("1h58m1s", False), ("8h", False)])
def test_a_budget_that_the_job_would_cut_off_is_refused(budget: str, fits: bool) -> None:
    spec = spec_of(budget=budget)
    script_of(spec, request_of(requeue=True))  # it goes on in the next job
    if fits:
        script_of(spec, request_of())
        return
    with pytest.raises(StudyFileError, match=r"--grace, 1 h 58 min, .*--requeue"):
        script_of(spec, request_of())


def test_what_the_refusal_says_to_ask_for_is_enough() -> None:
    spec = spec_of(budget="8h")
    with pytest.raises(StudyFileError, match="--time 482m"):
        script_of(spec, request_of())
    script_of(spec, request_of(time_s=8 * 3600 + 120.0))


def test_gpu_hours_are_foretold() -> None:
    assert "64.0 GPU-hours" in estimate(request_of())
    assert "8.0 node-hours" in estimate(request_of(gpus_per_node=None))


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
    program = called("driver", tmp_path / "study.toml", tmp_path / "run")
    done = run_script(script_of(spec_of(count=8), request_of(setup=lines), program), tmp_path, programs=says)
    assert (done.returncode, done.stdout) == (0, "driver -m autotune cuda/12 two\n"), done.stderr
    (tmp_path / "again").mkdir()
    broken = script_of(spec_of(count=8), request_of(setup=("no-such-program --x", "echo on")), program)
    done = run_script(broken, tmp_path / "again", programs=says)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "failed: no-such-program --x" in done.stderr


def test_a_set_up_line_with_a_secret_is_refused() -> None:
    with pytest.raises(StudyFileError) as caught:
        script_of(spec_of(count=8), request_of(setup=("export WANDB_API_KEY=0123456789abcdef",)))
    assert "0123456789abcdef" not in str(caught.value)
    script_of(spec_of(count=8), request_of(setup=("export WANDB_API_KEY=$MY_KEY",)))


@pytest.mark.parametrize("node_count", [1, 2, 4])
def test_the_script_is_bash(node_count: int) -> None:
    request = request_of(sbatch=("--comment=two words",), srun=("--x=a b",), requeue=True)
    program = called("/a b/python", Path("/it's/study.toml"), Path("/runs/x"))
    text = script_of(spec_of(count=8, node_count=node_count), request, program)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert directives[-1] == '#SBATCH --comment="two words"'
    assert "#SBATCH --nodes=4" in directives
    assert "{{" not in text
    assert "'/it'\"'\"'s/study.toml'" in text


def test_the_winner_of_a_run_is_proven_again_on_more_nodes_by_a_job(tmp_path: Path) -> None:
    device = 'device = { platform = "cuda", count = 32, node_count = 4 }'
    text = f'name = "s"\nworkload = {{ entry = "llama" }}\n{device}\n'
    (tmp_path / "larger.toml").write_text(text, encoding="utf-8")
    where = ["--nodes", "4", "--gpus-per-node", "8", "--winner", "runs/x", "--dry-run"]
    done = autotune("submit", "larger.toml", *where, "--sbatch", "--dependency=afterok:7", cwd=tmp_path)
    run = tmp_path / "runs" / "x"
    assert f"-m autotune recheck {run} --study {tmp_path / 'larger.toml'} --run-dir {run}-larger" in done.stdout
    assert "#SBATCH --dependency=afterok:7" in done.stdout


def test_what_sbatch_cannot_read_is_refused() -> None:
    with pytest.raises(StudyFileError, match="hold quotes"):
        script_of(spec_of(count=8), request_of(), program_of(Path('/runs/"x"')))


def test_the_script_of_the_page_starts_a_dask_cluster_in_the_image(tmp_path: Path) -> None:
    """With an srun that does with its arguments what it does."""
    (text,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/cluster.md").read_text(encoding="utf-8"), re.DOTALL)
    srun = 'while [[ $1 == --* ]]; do case $1 in --container-image=IMAGE) echo in;; esac; shift; done; exec "$@"'
    programs = {"srun": srun, "dask": 'echo "dask $*"', "autotune": 'sleep 0.5; echo "autotune $*"'}
    done = run_script(text.replace("/shared", str(tmp_path)), tmp_path, programs=programs)
    assert done.returncode == 0, done.stderr
    written = f"{tmp_path}/scheduler.json"
    assert sorted(done.stdout.splitlines()) == [
        f"autotune run {tmp_path}/study.toml --run-dir {tmp_path}/runs/x --scheduler {written}",
        f"dask scheduler --scheduler-file {written} --no-dashboard",
        f"dask worker --scheduler-file {written} --nthreads 1 --no-nanny --resources GPU=8",
        *["in"] * 3,
    ]
