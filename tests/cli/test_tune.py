"""`tune` as a newcomer types it: small real programs, good and hostile, started through the command line."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.tune import study_name_of
from autotune.model.block_sizes import WARMUP_STEPS
from autotune.model.flags import FlagSet
from autotune.model.spec import load_study
from autotune.programs import look as looking
from autotune.programs.arrival import OwnSettings, own_settings
from autotune.programs.draft import plan_of
from autotune.programs.look import ProbeResult, Steps, cpu_device_count
from autotune.programs.probe import Probe, ProbeRequest
from autotune.workers.settings_check import files_that_set
from harness.simulated_machine import write_study
from tests.console import autotune, autotune_process
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)
PROGRAMS = CASES["programs"]
MAPS_XLA = PROGRAMS["maps_xla"]
PLAIN = MAPS_XLA + PROGRAMS["plain"]


@pytest.fixture(autouse=True)
def looks_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough is seen of these programs in a second: their steps take a fiftieth of one."""
    monkeypatch.setattr(looking, "ENOUGH_S", 0.5)


def look(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `tune --dry-run` says of a program with this text, which seems to have loaded XLA."""
    (folder / "train.py").write_text(text if text.startswith(MAPS_XLA) else MAPS_XLA + text)
    named = ("--name", "train", *arguments)
    return autotune("tune", "--dry-run", *named, "--", sys.executable, "train.py", cwd=folder)


def test_a_plain_program_is_understood_and_its_study_passes_the_checks(tmp_path: Path) -> None:
    done = look(tmp_path, PLAIN, "--trials", "7", "--time-budget", "20m")
    assert done.returncode == 0, done.stderr
    assert "as: step " in done.stdout
    assert "as step_ms" in done.stdout
    spec = load_study(tmp_path / "train.toml")
    assert spec.workload.command == (sys.executable, "train.py")
    assert (spec.search.trials, spec.search.time_budget, spec.search.groups) == (7, 1200.0, ("cpu",))
    assert spec.measure.run_steps >= 10
    assert spec.workload.read is not None
    assert not (tmp_path / "runs").exists()


UNDERSTOOD = CASES["understood_programs"]


@pytest.mark.parametrize("kind", UNDERSTOOD)
def test_what_a_program_does_is_understood(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = UNDERSTOOD[kind]
    monkeypatch.setattr(looking, "ENOUGH_S", case.get("enough_s", 0.5))
    done = look(tmp_path, case["text"], *case.get("options", ()))
    assert done.returncode == 0, done.stderr
    assert case["said"] in done.stdout + done.stderr
    spec = load_study(tmp_path / "train.toml")
    assert case.get("read", {}).items() <= there(spec.workload.read).rules().items()
    assert spec.measure.run_steps <= case.get("steps", math.inf) - WARMUP_STEPS - 1


def test_what_xla_dumps_for_the_look_is_no_file_of_the_program(tmp_path: Path) -> None:
    text = 'import os, re\nkept = open(re.search(r"xla_dump_to=(\\S+)", os.environ["XLA_FLAGS"])[1] + "/module", "w")\n'
    done = look(tmp_path, text + PLAIN, "--platform", "cpu")
    assert done.returncode == 0, done.stderr
    assert "outside this" not in done.stdout


FLAG = "--xla_cpu_enable_fast_math=true"
COMPILES = "import jax\njax.config.update('jax_platforms', 'cpu')\njax.numpy.ones(3).block_until_ready()\n"
REPLACES = f"import os\nos.environ['XLA_FLAGS'] = {FLAG!r}\n"
HOSTILE = {
    **CASES["hostile_programs"],
    "replaces its flags while it runs, as what XLA compiles shows": [REPLACES + COMPILES + PLAIN, "sets XLA_FLAGS"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_program_that_cannot_be_tuned_is_told_what_to_do(kind: str, tmp_path: Path) -> None:
    text, wanted = HOSTILE[kind]
    done = look(tmp_path, text)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "autotune/cli/app.py" not in done.stderr  # no traceback of ours
    assert not (tmp_path / "train.toml").exists()


UNKNOWN = CASES["unknown_lines"]


@pytest.mark.parametrize("kind", UNKNOWN)
def test_no_fit_is_quick_and_a_file_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "STUCK_S", 1.0)
    text, wanted = UNKNOWN[kind]
    began = time.monotonic()
    done = look(tmp_path, f"import json, time\n{text}\n")
    assert time.monotonic() - began < 15, "it would run for 18 s"
    assert done.returncode == 2
    assert wanted in done.stderr
    _, _, options = done.stderr.partition("call the same with: ")
    options = options.partition("\n")[0]
    if not options:
        assert kind != "JSON lines only"
        return
    done = look(tmp_path, f"import json, time\n{text}\n", *shlex.split(options))
    assert done.returncode == 0, done.stderr
    loss = next(line for line in done.stdout.splitlines() if line.startswith("loss "))
    assert loss.split()[1].startswith(("4.1", "4.0")), "the summary says which loss it reads"


def test_a_look_that_takes_too_long_ends_with_everything_that_it_started(tmp_path: Path) -> None:
    mark = f"look-{os.getpid()}-{time.time_ns()}"
    done = look(tmp_path, PROGRAMS["children"].replace("MARK", mark), "--look-limit", "3s")
    assert done.returncode == 2
    assert "--look-limit" in done.stderr
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or ())]


def test_a_look_leaves_the_folder_as_it_was_and_tells_what_is_written_elsewhere(tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:  # shared memory counts as no file
        done = look(project, PROGRAMS["writer"].replace("OUTSIDE", outside))
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in project.iterdir()) == ["train.py", "train.toml"]
    assert f"writes {outside}/0 " in done.stdout


@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_argument_comes_back_from_the_file_as_it_was(name: str) -> None:
    request = ProbeRequest(command=("python", name), cwd=Path(), platform="cpu", rules={}, limit_s=1.0)
    found = ProbeResult(
        request=request,
        probe=Probe(),
        steps=Steps(tuple(range(40)), (1.0,) * 40, name, None),
        device=name,
        device_count=1,
        rules={"preset": "clu"},
        how=name,
        doubt="",
        own=OwnSettings(settings=FlagSet(), environment={}, held={}, warnings=()),
    )
    plan = plan_of(found, name="x", trials=4, budget_s=None, command_line=f"x {name}")
    assert plan.spec.workload.command == request.command


HYDRA = ["model.lr=1e-3", "+trainer={a: 1, steps: 400}", "note=it's {here}", "x=\\d 'q' \"p\""]


def test_arguments_arrive_as_they_are_and_a_launcher_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    saved = "import json, os, sys\nopen(os.environ['SEEN'], 'w').write(json.dumps(sys.argv[1:]))\nimport jaxlib\n"
    (tmp_path / "pack" / "main.py").write_text(saved + "import jaxlib.xla_client\n" + PLAIN)
    (tmp_path / "run.sh").write_text(f'exec {sys.executable} -m pack.main "$@"\n')
    seen = tmp_path.with_name("seen.json")
    done = autotune("tune", "--dry-run", "--name", "run", "--", "bash", "run.sh", *HYDRA, cwd=tmp_path, SEEN=str(seen))
    assert done.returncode == 0, done.stderr
    spec = load_study(tmp_path / "run.toml")
    assert spec.workload.command == ("bash", "run.sh", *HYDRA)
    assert [*spec.workload.arguments("f")][2:] == HYDRA
    assert json.loads(seen.read_text()) == HYDRA
    assert ", jaxlib " in done.stdout


LOADS_XLA = "import os, sys, jaxlib.xla_client\n"
SCRIPT = f'{sys.executable} train.py "$@"'
LOSES_FLAGS = {
    "exports its own": f'export XLA_FLAGS="{FLAG}"\n{SCRIPT}',
    "takes them away": f"unset XLA_FLAGS\n{SCRIPT}",
    "starts again with its own": f"{sys.executable} again.py",
}


@pytest.mark.parametrize("kind", LOSES_FLAGS)
def test_a_script_that_lets_no_settings_arrive_is_told_before_the_study(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADS_XLA + PLAIN)
    (tmp_path / "again.py").write_text(PROGRAMS["again"] + (tmp_path / "train.py").read_text())
    (tmp_path / "run.sh").write_text(LOSES_FLAGS[kind] + "\n")
    done = autotune("tune", "--dry-run", "--name", "run", "--", "bash", "run.sh", cwd=tmp_path)
    assert done.returncode == 2
    assert "XLA_FLAGS" in done.stderr
    if kind == "exports its own":
        assert f'export XLA_FLAGS="{FLAG} $XLA_FLAGS"' in done.stderr
    assert not (tmp_path / "run.toml").exists()


def test_the_settings_of_a_script_become_the_baseline_and_its_devices_those_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADS_XLA + PLAIN)
    own = f"{FLAG} --xla_force_host_platform_device_count=3 --xla_dump_to=/nowhere"
    (tmp_path / "run.sh").write_text(f'export XLA_FLAGS="$XLA_FLAGS {own}" OMP_NUM_THREADS=2\n{SCRIPT}\n')
    done = autotune("tune", "--dry-run", "--name", "run", "--", "bash", "run.sh", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f'export XLA_FLAGS="{own} $XLA_FLAGS"' in done.stdout, "its flags come last, so they win over a trial's"
    assert 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"' in done.stdout
    spec = load_study(tmp_path / "run.toml")
    assert dict(spec.baseline) == {"OMP_NUM_THREADS": "2", "xla_cpu_enable_fast_math": "true"}, "no file is handed on"
    assert spec.device.count == 3


@pytest.mark.gate
def test_python_that_adds_to_its_flags_is_let_be_and_flags_that_are_read_from_a_file_are_missed(tmp_path: Path) -> None:
    done = look(tmp_path, REPLACES.replace(" = ", " += ' ' + ") + COMPILES + PLAIN)
    assert done.returncode == 0
    assert "compiled nothing" not in done.stdout
    (tmp_path / "train.toml").unlink()
    (tmp_path / ".env").write_text(f"XLA_FLAGS={FLAG}")
    reads = "import os\nos.environ.update(line.split('=', 1) for line in open('.env'))\n"
    assert "compiled nothing" in look(tmp_path, reads + COMPILES + PLAIN).stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_here_is_missed_before_the_program_is_started(tmp_path: Path) -> None:
    done = look(tmp_path, "open('started', 'w')\n", "--platform", "cuda")
    assert done.returncode == 2
    assert "none is" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(("command", "name"), CASES["names"], ids=lambda value: value if isinstance(value, str) else "")
def test_names_follow_folder_and_program(command: list[str], name: str) -> None:
    assert study_name_of(command, Path("/home/me/gpt")) == name


def test_a_program_that_never_loads_xla_is_refused_but_one_in_a_container_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("# not for docker\n" + PROGRAMS["plain"])
    (tmp_path / "in_docker.sh").write_text(f"true docker run\n{sys.executable} train.py\n")
    done = autotune("tune", "--dry-run", "--", sys.executable, "train.py", cwd=tmp_path)
    assert (done.returncode, "none of its processes has loaded jaxlib" in done.stderr) == (2, True)
    done = autotune("tune", "--dry-run", "--", "bash", "in_docker.sh", cwd=tmp_path)
    assert (done.returncode, "unless it trains with JAX in a container" in done.stdout) == (0, True)


@pytest.mark.parametrize("case", CASES["held"], ids=lambda case: case["name"])
def test_flags_and_devices_that_python_sets_while_it_runs_are_seen_by_the_dump(case: dict[str, Any]) -> None:
    given = "--xla_dump_max_hlo_modules=-1 --xla_dump_to=/tmp/x"
    values = {"XLA_FLAGS": f"{case.get('given', '')} {given}".strip()}
    probe = Probe(environment={"XLA_FLAGS": given}, has_dumped=True, options=case["options"])
    probe.processes = {1: {"pid": 1, "values": values, "opens_gpu": case.get("gpu", False)}}
    probe.partitions = case.get("partitions", 1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(case["text"])
        own = own_settings(probe, ["python", "train.py"], Path(folder))
    assert list(own.held) == case["held"]
    assert cpu_device_count(own.environment) == case.get("devices")


@pytest.mark.parametrize(("text", "sets"), CASES["sets"])
def test_reading_a_variable_is_not_setting_it(text: str, sets: bool, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(text)
    assert files_that_set("XLA_FLAGS", ["python", "run.py"], tmp_path) == ["run.py"] * sets


def test_another_command_gets_another_file_and_the_same_one_goes_on(tmp_path: Path) -> None:
    look(tmp_path, PLAIN)
    (tmp_path / "train.toml").rename(tmp_path / f"{(derived := study_name_of(['train.py'], tmp_path))}.toml")
    before = (tmp_path / f"{derived}.toml").read_text()
    again = autotune("tune", "--dry-run", "--", sys.executable, "train.py", cwd=tmp_path)
    assert f"the study {derived}.toml" in again.stdout
    assert (tmp_path / f"{derived}.toml").read_text() == before
    other = autotune("tune", "--dry-run", "--", sys.executable, "train.py", "--fast", cwd=tmp_path)
    assert f"written to {derived}-2.toml" in other.stdout
    named = autotune("tune", "--dry-run", "--name", derived, "--", sys.executable, "train.py", "--slow", cwd=tmp_path)
    assert named.returncode == 2
    assert "something else" in named.stderr
    read = autotune("tune", "--dry-run", "--step-pattern", "x", "--", sys.executable, "train.py", cwd=tmp_path)
    assert read.returncode == 2
    assert "how steps are read must be as in" in read.stderr


def test_a_command_with_a_secret_is_written_for_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    token = "hf_" + "a1" * 12
    command = ("--name", "train", "--", sys.executable, "train.py", f"--token={token}")
    done = autotune("tune", "--dry-run", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert token not in done.stdout + done.stderr
    assert (tmp_path / "train.toml").read_text().count(token) == 1  # the command itself, and no remark
    assert (tmp_path / "train.toml").stat().st_mode & 0o077 == 0


def test_the_end_is_an_env_file_and_the_line_that_uses_it(tmp_path: Path) -> None:
    """A formula takes the place of the measuring, so that there is a winner; all else is real."""
    look(tmp_path, PLAIN)
    study = (tmp_path / "train.toml").read_text()
    study = study.replace('groups = ["cpu"]', "settings = { xla_backend_optimization_level = [1, 2] }")
    effects = '{ "xla_backend_optimization_level=1" = 0.9 }'
    write_study(tmp_path / "train.toml", f'{study}\n[simulation]\nnoise = "quiet"\neffects = {effects}\n')
    done = autotune("tune", "--yes", "--name", "train", "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "study train.toml" in done.stdout
    use = next(line.strip() for line in done.stdout.splitlines() if "winner.env &&" in line)
    assert use == f"(. ./runs/train/winner.env && {sys.executable} train.py)"
    command = ["sh", "-c", ". ./runs/train/winner.env && env"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "XLA_FLAGS=--xla_backend_optimization_level=1" in shown
    assert f"autotune exec runs/train -- {sys.executable} train.py" in done.stdout


@pytest.mark.gate
@pytest.mark.timeout(500)
def test_a_program_that_runs_is_tuned_by_a_real_start_to_its_env_file(tmp_path: Path) -> None:
    assert look(tmp_path, PROGRAMS["quick"]).returncode == 0
    (tmp_path / "train.py").write_text(PROGRAMS["quick"])  # of which no dump is expected
    study = (tmp_path / "train.toml").read_text()
    for before, after in CASES["smaller_study"].items():
        study, count = re.subn(f"^{before}$", after, study, flags=re.M)
        assert count == 1
    (tmp_path / "train.toml").write_text(study)
    command = ("tune", "--yes", "--name", "train", "--trials", "1", "--", sys.executable, "train.py")
    done = autotune_process(*command, cwd=tmp_path, XDG_DATA_HOME=str(tmp_path / "data"))
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert "winner is" in done.stdout
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["runs", "train.py", "train.toml"]  # no checkpoint, no lock
    script = f". ./runs/train/winner.env && exec {sys.executable} train.py"
    tuned = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "step 199: loss 0.00500, step_time_ms=1.60" in tuned.stdout
