"""The batch script that `autotune submit --dry-run` shows is bash, with and without SLURM on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.cluster import JobRequest, Program, render_script
from autotune.model import StudyFileError, parse_study


def script(node_count: int = 1, sbatch: tuple[str, ...] = (), *, array: bool = False, run_dir: str = "/runs/x") -> str:
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}, "device": {"node_count": node_count}})
    request = JobRequest(
        partition="gpu", nodes=4, gpus_per_node=8, time_s=3600, grace_s=60, array=array, sbatch=sbatch,
        srun=("--x=a b",), requeue=True,
    )  # fmt: skip
    program = Program(python="/a b/python", study=Path("/it's/study.toml"), run_dir=Path(run_dir))
    return render_script(spec, request, program, with_storage=True)


@pytest.mark.parametrize(("node_count", "array"), [(1, False), (2, False), (4, False), (1, True)])
def test_the_script_is_bash(node_count: int, array: bool) -> None:
    text = script(node_count, ("--comment=two words",), array=array)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert directives[-1] == '#SBATCH --comment="two words"'
    assert f"#SBATCH --nodes={1 if array else 4}" in directives
    assert "{{" not in text
    assert "'/it'\"'\"'s/study.toml'" in text


def test_an_array_has_no_trials_over_several_nodes() -> None:
    with pytest.raises(StudyFileError, match="leave out --array"):
        script(2, array=True)


def test_what_sbatch_cannot_read_is_refused() -> None:
    with pytest.raises(StudyFileError, match="must not hold quotes"):
        script(run_dir='/runs/"x"')
