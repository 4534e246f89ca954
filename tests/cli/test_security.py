"""What must never happen: data that is run, names that lead out, ports that are open."""

from __future__ import annotations

import ast
import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.workers.local import LocalLauncher
from tests.console import autotune

ROOT = Path(__file__).parents[2]
CODE = sorted([*ROOT.glob("autotune/**/*.py"), *ROOT.glob("workloads/**/*.py")])
PROGRAMS = Path(__file__).parents[1] / "workers/programs"

STUDY = """
name = "typed"
[workload]
entry = "llama"
options = { size = "tiny" }
[search]
trials = 3
[search.settings]
xla_backend_optimization_level = [1, 2, 3]
[measure]
pairs_cap = 8
block_s = 0.01
floor_processes = 2
[confirm]
processes = 3
finalists = 1
pairs = 4
alone = 0
soak = "1s"
soak_steps = 20
"""
REPLAY = """
[replay]
noise = "quiet"
effects = { "xla_backend_optimization_level=1" = 0.9 }
"""


# ---------------------------------------------------------------------- data stays data

RUNS_DATA = {"eval", "exec", "compile", "__import__"}
READS_CODE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "imp", "code"}
WRITES_YAML = {"dump_all", "SafeDumper", "ScalarNode"}  # reading it can make objects; nothing here reads any
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}


def offences(tree: ast.AST) -> Iterator[str]:
    """What in a module would run data as code, or hand text to a shell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [a.name for a in node.names if (a.name, a.asname) != ("yaml", None)]
            yield from (name for name in named if name.partition(".")[0] in READS_CODE)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
            yield from {f"yaml.{node.attr}"} - {f"yaml.{name}" for name in WRITES_YAML}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in READS_CODE:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in RUNS_DATA:
                yield node.func.id
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                call = (node.func.value.id, node.func.attr)
                yield from (".".join(call) for _ in [0] if call in SHELLS)
            yield from ("shell=" for k in node.keywords if k.arg == "shell")
            yield from ("allow_pickle=" for k in node.keywords if k.arg == "allow_pickle")


@pytest.mark.parametrize(
    "code",
    [
        "eval('1')", "import pickle", "from yaml import load", "import yaml as y", "import yaml\nyaml.load(text)",
        "import yaml\nread = yaml.unsafe_load", "run(x, shell=True)", "os.system('ls')", "exec(text)",
    ],
)  # fmt: skip
def test_the_search_for_offences_finds_them(code: str) -> None:
    assert list(offences(ast.parse(code)))


@pytest.mark.parametrize("path", CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_runs_data_or_reads_pickles_or_calls_a_shell(path: Path) -> None:
    assert not list(offences(ast.parse(path.read_text(encoding="utf-8"))))


def test_an_exported_file_is_read_and_never_run(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY + REPLAY)
    assert autotune("run", "study.toml", "--run-dir", "run", cwd=tmp_path).returncode == 0
    assert autotune("export", "run", "--format", "env", "-o", "winner.env", cwd=tmp_path).returncode == 0
    text = (tmp_path / "winner.env").read_text()
    (tmp_path / "winner.env").write_text(f"$(touch pwned)\n`touch pwned`\n{text}\ntouch pwned\n; touch pwned\n")
    for command in (["verify", "winner.env"], ["recheck", "winner.env"], ["flags", "check", "--file", "winner.env"]):
        done = autotune(*command, cwd=tmp_path)
        assert "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.rglob("pwned"))


# ---------------------------------------------------------------------- names stay inside


@pytest.mark.parametrize("name", ["../out", "a/b", "/etc/x", "..", "a\nb", "", ".hidden", "a..b", "x" * 65])
def test_a_study_s_name_is_a_plain_one(name: str) -> None:
    with pytest.raises(StudyFileError, match="name"):
        parse_study({"name": name, "workload": {"entry": "llama"}})


# ---------------------------------------------------------------------- nothing listens beyond loopback


def listening(root: psutil.Process) -> list[tuple[str, str]]:
    """Address and command of every socket on which a process or one below it listens."""
    found = []
    for process in [root, *root.children(recursive=True)]:
        for socket in process.net_connections(kind="inet"):
            if socket.status == psutil.CONN_LISTEN:
                found.append((socket.laddr.ip, " ".join(process.cmdline()[-3:])))
    return found


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@pytest.mark.parametrize("process_count", [1, 2])
def test_a_trial_on_this_machine_listens_on_loopback_only(tmp_path: Path, process_count: int) -> None:
    spec = parse_study(
        {
            "name": "quiet",
            "workload": {"entry": "faulty:build"},
            "device": {"count": 2, "process_count": process_count},
            "measure": {"check_steps": 2, "warmup_steps": 2},
        }
    )
    launcher = LocalLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
    try:
        worker = launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
        worker.run_block(3)
        found = listening(psutil.Process())
        assert bool(found) == (process_count > 1)
        assert [f for f in found if not is_loopback(f[0])] == []
    finally:
        launcher.close()
