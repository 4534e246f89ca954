"""Every format is read back by the program it is for, with values that try to break out of it."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.results.export import ExportFormat, is_unchanged, parse_winner, read_winner, render_export, render_winner
from autotune.rundir.store import Store
from tests.runs import make_winner

ALL = {
    "NCCL_SPACES": "  a b  ",
    "NCCL_SINGLE": "it's",
    "NCCL_DOUBLE": 'say "hi"',
    "NCCL_COMMAND": "$(touch canary)`touch canary`;touch canary #",
    "NCCL_DOLLARS": "$HOME ${HOME} $$ $$(HOME) $(HOME) $",
    "NCCL_BACKSLASH": "a\\b\\n\\",
    "NCCL_EQUALS": "=a=b",
    "NCCL_COMMA": "a,b='c'",
    "NCCL_HASH": "#not a comment",
    "NCCL_UNICODE": "é ß 字 😀",
    "NCCL_EMPTY": "",
    "NCCL_YAML": "- yes: [no, {~",
    "NCCL_BANG": "!x %VAR% ^",
    "jax_default_matmul_precision": "'''x\"\"\"",
    "xla_gpu_a": "two words",
    "xla_gpu_b": "quo\"te's \\ $(touch canary)",
}

Read = Callable[[str, Path], dict[str, str]]


def script(command: list[str], *, extra: dict[str, str] | None = None, name: str = "winner.sh") -> Read:
    """Reads a script by a command run in its folder; `srun` and `python3` tell their environment."""

    def read(text: str, folder: Path) -> dict[str, str]:
        (folder / name).write_text(text, encoding="utf-8", newline="")
        tools = folder / "bin"
        tools.mkdir()
        for tool in ("srun", "python3"):
            (tools / tool).write_text("#!/bin/sh\nenv -0\n")
            (tools / tool).chmod(0o755)
        env = {"PATH": f"{tools}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/", **(extra or {})}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True, timeout=30)
        pairs = [e.partition("=") for e in done.stdout.decode().split("\0") if e]
        return {key: value for key, _, value in pairs}

    return read


def docker_grammar(text: str, folder: Path) -> dict[str, str]:
    """Docker's env-file as its command line reads it: docker/cli, pkg/kvfile."""
    found = {}
    for line in text.split("\n"):
        line = line.removesuffix("\r").lstrip()
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert not re.search(r"\s", name)
            found[name] = value
    return found


def kubernetes(text: str, folder: Path) -> dict[str, str]:
    """YAML as any parser reads it, then the kubelet's expansion of `$(NAME)` and `$$`."""
    listed = yaml.safe_load(text)["env"]
    known: dict[str, str] = {"HOME": "/danger"}

    def expand(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    for entry in listed:
        known[entry["name"]] = re.sub(r"\$\$|\$\(([^)]*)\)", expand, entry["value"])
    return {e["name"]: known[e["name"]] for e in listed}


READERS: dict[ExportFormat, Read] = {
    ExportFormat.ENV: script(["sh", "-c", ". ./winner.sh; env -0"]),
    ExportFormat.SHELL: script(["sh", "winner.sh", "env", "-0"]),
    ExportFormat.DOCKER: docker_grammar,
    ExportFormat.SBATCH: script(["bash", "winner.sh", "python", "train.py"]),
    ExportFormat.K8S: kubernetes,
    ExportFormat.JSON: lambda text, _: dict(json.loads(text)["environment"]),
    ExportFormat.MAXTEXT: script(["bash", "winner.sh", "base.yml"]),
}

OF_OPTIONS = {ExportFormat.ARGUMENTS}  # read in test_export_options.py
OF_SETTINGS = [form for form in ExportFormat if form not in OF_OPTIONS]


def test_every_format_has_a_reader() -> None:
    assert {*READERS, *OF_OPTIONS} == set(ExportFormat)


@pytest.mark.parametrize("form", OF_SETTINGS)
def test_hostile_values_arrive_unchanged_and_nothing_runs(form: ExportFormat, tmp_path: Path) -> None:
    winner = make_winner(ALL)
    text = render_winner(winner, form)
    got = READERS[form](text, tmp_path)
    assert {n: got.get(n) for n in winner.environment} == winner.environment
    assert FlagSet.from_environment(got, [n for n in ALL if not n.startswith("xla")]) == FlagSet(ALL)
    assert not list(tmp_path.rglob("canary"))


@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ")))
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back_from_data_formats(value: str) -> None:
    winner = make_winner({"NCCL_X": value, "xla_gpu_x": value})
    for form in (ExportFormat.JSON, ExportFormat.K8S):
        assert READERS[form](render_winner(winner, form), Path()) == winner.environment


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_env_file_is_for_any_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, "sh"] if shell == "busybox" else [shell]
    winner = make_winner(ALL)
    got = script([*command, "-c", ". ./winner.sh; env -0"])(render_winner(winner, ExportFormat.ENV), tmp_path)
    assert {n: got.get(n) for n in winner.environment} == winner.environment


def test_docker_refuses_lines_that_its_scanner_does() -> None:
    with pytest.raises(AutotuneError, match="at most 65535 bytes"):
        render_winner(make_winner({"NCCL_X": "x" * 66_000}), ExportFormat.DOCKER)


class _Daemon(http.server.BaseHTTPRequestHandler):
    """As much of a Docker daemon as `docker create` asks for."""

    protocol_version = "HTTP/1.1"
    created: list[dict[str, Any]]

    def do_HEAD(self) -> None:
        self._answer(200, {})

    do_GET = do_HEAD

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.created.append(json.loads(body))
        self._answer(201, {"Id": "0" * 64, "Warnings": []})

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        body = b"" if self.command == "HEAD" else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("API-Version", "1.45")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def docker_daemon(tmp_path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    created: list[dict[str, Any]] = []
    path = str(tmp_path / "d.sock")
    with Server(path, type("Daemon", (_Daemon,), {"created": created})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"unix://{path}", created
        server.shutdown()
        thread.join()


def test_the_real_docker_client_reads_the_env_file(
    docker_daemon: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("the docker client is not installed")
    host, created = docker_daemon
    winner = make_winner(ALL)
    file = tmp_path / "winner.env"
    file.write_text(render_winner(winner, ExportFormat.DOCKER), encoding="utf-8", newline="")
    command = [docker, "--host", host, "create", "--env-file", str(file), "image"]
    env = {"PATH": os.defpath, "HOME": str(tmp_path)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=60)
    assert dict(e.partition("=")[::2] for e in created[0]["Env"]) == winner.environment


def test_a_real_slurm_cluster_runs_the_job_script(tmp_path: Path) -> None:
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no SLURM cluster answers here")
    winner = make_winner(ALL, device_count=None).model_copy(update={"process_count": 1})
    script_path, out = tmp_path / "winner.sbatch", tmp_path / "out"
    script_path.write_text(render_winner(winner, ExportFormat.SBATCH), encoding="utf-8", newline="")
    # Even where the site exports nothing to jobs, the winner's variables arrive.
    command = ["sbatch", "--wait", "--export=NONE", f"--output={tmp_path / 'log'}", str(script_path)]
    subprocess.run(
        [*command, "sh", "-c", f"env -0 > {out}"], check=True, capture_output=True, timeout=100, cwd=tmp_path
    )
    got = dict(e.partition("=")[::2] for e in out.read_bytes().decode().split("\0") if e)
    assert {n: got.get(n) for n in winner.environment} == winner.environment
    assert not list(tmp_path.rglob("canary"))


def test_shell_script_keeps_the_callers_flags_before_the_winners(tmp_path: Path) -> None:
    text = render_winner(make_winner({"xla_gpu_a": "2"}), ExportFormat.SHELL)
    got = script(["sh", "winner.sh", "env", "-0"], extra={"XLA_FLAGS": "--xla_gpu_a=1 --xla_gpu_z=3"})(text, tmp_path)
    assert FlagSet.parse(got["XLA_FLAGS"]) == FlagSet({"xla_gpu_a": 2, "xla_gpu_z": 3})


def test_sbatch_asks_for_what_was_proven() -> None:
    text = render_winner(make_winner({"NCCL_X": "1"}), ExportFormat.SBATCH)
    assert "#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n" in text


@pytest.mark.parametrize("form", list(ExportFormat))
def test_every_format_carries_evidence_and_the_whole_winner(form: ExportFormat) -> None:
    winner = make_winner(ALL)
    text = render_winner(winner, form)
    assert parse_winner(text, source="x") == winner
    assert "0.950 [0.940, 0.960]" in text
    assert "expires with any change of GPU" in text


@pytest.mark.parametrize("form", list(ExportFormat))
def test_a_changed_file_is_noticed(form: ExportFormat) -> None:
    winner = make_winner({"NCCL_X": "proven"})
    text = render_winner(winner, form)
    assert is_unchanged(text, winner)
    head, found, tail = text.rpartition("proven")
    assert not is_unchanged(f"{head}better{tail}" if found else "", winner)


def test_the_run_itself_is_exported_with_its_baseline(finished: Store, tmp_path: Path) -> None:
    file = tmp_path / "winner.env"
    file.write_text(render_export(finished, ExportFormat.ENV))
    winner = read_winner(file)
    assert winner == read_winner(finished.path)
    assert winner.settings == FlagSet({"xla_a": "1", "xla_d": "2", "NCCL_DEBUG": "WARN"})
    assert winner.step_s == pytest.approx(0.03 * 0.95 * 0.97, rel=0.01)


@pytest.mark.parametrize(
    "text", ["", "export A=1\n", "# autotune-winner: {", "[]", '{"winner": 3}', "# autotune-winner: {}"]
)
def test_files_that_hold_no_winner_are_refused(text: str) -> None:
    with pytest.raises(AutotuneError, match="export it again"):
        parse_winner(text, source="file")


def test_a_winner_of_a_later_form_is_refused() -> None:
    text = render_winner(make_winner({"NCCL_X": "1"}), ExportFormat.ENV).replace(
        '"winner_version":2', '"winner_version":3'
    )
    with pytest.raises(AutotuneError, match="winner_version"):
        parse_winner(text, source="file")
