"""What must never happen: data that is run, names that lead out, ports that are open."""

from __future__ import annotations

import ast
import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.rundir.store import Store
from autotune.workers.local import LocalLauncher
from tests.console import autotune
from tests.tables import toml_beside

ROOT = Path(__file__).parents[2]
CODE = sorted([*ROOT.glob("autotune/**/*.py"), *ROOT.glob("workloads/**/*.py")])
PROGRAMS = Path(__file__).parents[1] / "workers/programs"

# ---------------------------------------------------------------------- data stays data

RUNS_DATA = {"eval", "exec", "compile", "__import__"}
READS_CODE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "imp", "code"}
SAFE_YAML = {"dump_all", "SafeDumper", "ScalarNode", "BaseLoader", "YAMLError"}  # other loaders can make objects
SHELLS = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}


def offences(tree: ast.AST) -> Iterator[str]:
    """What in a module would run data as code, or hand text to a shell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named = [a.name for a in node.names if (a.name, a.asname) != ("yaml", None)]
            yield from (name for name in named if name.partition(".")[0] in READS_CODE)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
            yield from {f"yaml.{node.attr}"} - {f"yaml.{name}" for name in SAFE_YAML}
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


@pytest.mark.parametrize("code", toml_beside(__file__)["offences"])
def test_the_search_for_offences_finds_them(code: str) -> None:
    assert list(offences(ast.parse(code)))


def test_no_module_runs_data_or_reads_pickles_or_calls_a_shell() -> None:
    found = {str(p.relative_to(ROOT)): [*offences(ast.parse(p.read_text(encoding="utf-8")))] for p in CODE}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_an_exported_file_is_read_and_never_run(finished: Store, tmp_path: Path) -> None:
    file = tmp_path / "winner.env"
    assert autotune("export", finished.path, "--format", "env", "-o", file).returncode == 0
    file.write_text(f"$(touch pwned)\n`touch pwned`\n{file.read_text()}\ntouch pwned\n; touch pwned\n")
    for command in (["verify", "winner.env"], ["recheck", "winner.env"], ["flags", "check", "--file", "winner.env"]):
        assert "Traceback" not in autotune(*command, cwd=tmp_path).stderr
    assert not list(tmp_path.rglob("pwned"))


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


@pytest.mark.parametrize("process_count", [1, pytest.param(2, marks=pytest.mark.gate)])
def test_a_trial_on_this_machine_listens_on_loopback_only(tmp_path: Path, process_count: int) -> None:
    device = {"count": 2, "process_count": process_count}
    spec = parse_study({"name": "quiet", "workload": {"entry": "faulty:build"}, "device": device})
    launcher = LocalLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
    try:
        worker = launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
        worker.run_block(3)
        found = listening(psutil.Process())
        assert bool(found) == (process_count > 1)
        assert [f for f in found if not is_loopback(f[0])] == []
    finally:
        launcher.close()
