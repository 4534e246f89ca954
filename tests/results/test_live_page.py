"""The page that moves: what it serves, to whom, and that it follows a run directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from autotune.model import AutotuneError, RunDirectoryError
from autotune.results import LivePage, report
from autotune.results import live_page as module
from autotune.rundir import Store


@pytest.fixture
def served(finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LivePage, Path]]:
    monkeypatch.setattr(module, "MOST_OFTEN_S", 0.0)
    shutil.copytree(finished.path, tmp_path / "run")
    page = LivePage(tmp_path / "run")
    thread = threading.Thread(target=page.serve)
    thread.start()
    yield page, tmp_path / "run"
    page.close()
    thread.join(10)
    assert not thread.is_alive()


def get(page: LivePage, path: str = "", **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    address = urlsplit(page.address)
    with contextlib.closing(http.client.HTTPConnection(address.hostname or "", address.port or 0, timeout=30)) as asked:
        asked.request("GET", path if path.startswith("/") else address.path + path, headers=headers)
        answer = asked.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_the_page_is_the_report_with_one_script_of_ours(served: tuple[LivePage, Path]) -> None:
    page, _ = served
    status, text, headers = get(page)
    assert status == 200
    assert "Finalists, in fresh processes" in text
    scripts = re.findall(r"<script[^>]*>", text)
    assert len(scripts) == 1
    nonce = re.search(r'nonce="([\w-]+)"', scripts[0])
    assert nonce is not None
    policy = headers["Content-Security-Policy"]
    assert f"'nonce-{nonce[1]}'" in policy
    assert "default-src 'none'" in policy


def test_who_has_no_token_sees_nothing(served: tuple[LivePage, Path]) -> None:
    page, _ = served
    for path in ("/", "/state", "/" + "x" * 22 + "/", urlsplit(page.address).path[:-2] + "/", "//", "/%2e%2e/"):
        status, text, _ = get(page, path)
        assert status == 404, path
        assert "default" not in text
    assert get(page, "../records.jsonl")[0] == 404
    assert get(page, "records.jsonl")[0] == 404


def test_a_name_that_leads_here_is_not_answered(served: tuple[LivePage, Path]) -> None:
    page, _ = served
    port = urlsplit(page.address).port
    assert get(page, Host=f"localhost:{port}")[0] == 200
    for host in (f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::]", "0.0.0.0"):
        assert get(page, Host=host)[0] == 404, host


def test_it_listens_on_loopback_alone_and_only_reads(served: tuple[LivePage, Path]) -> None:
    page, path = served
    before = {f: f.stat().st_mtime_ns for f in path.rglob("*")}
    get(page)
    address = urlsplit(page.address)
    for method in ("POST", "PUT", "DELETE"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=30)) as asked:
            asked.request(method, address.path)
            assert asked.getresponse().status == 501
    assert {f: f.stat().st_mtime_ns for f in path.rglob("*")} == before
    with socket.socket() as elsewhere:  # another address of this machine
        elsewhere.settimeout(5)
        assert elsewhere.connect_ex(("127.0.0.2", address.port or 0)) != 0


def test_it_moves_as_records_arrive(served: tuple[LivePage, Path]) -> None:
    page, path = served
    first = json.loads(get(page, "state")[1])["page"]
    assert json.loads(get(page, "state")[1])["page"] == first
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    (path / "records.jsonl").write_text("".join(line for line in lines if '"kind":"conclusion"' not in line))
    assert json.loads(get(page, "state")[1])["page"] != first
    assert "nobody has ended it" in get(page)[1] or "autotune report · stopped" in get(page)[1]


def test_damaged_records_are_told_and_the_page_comes_back(served: tuple[LivePage, Path]) -> None:
    page, path = served
    whole = (path / "records.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    (path / "records.jsonl").write_text("".join([lines[0], "{not json}\n", *lines[1:]]))
    status, text, _ = get(page)
    assert status == 503
    assert "records.jsonl" in text
    (path / "records.jsonl").write_text(whole)
    assert get(page)[0] == 200


def test_damage_is_read_once_and_mending_anything_is_seen(
    served: tuple[LivePage, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, path = served
    tried: list[Store] = []
    real = report.build

    def build(store: Store) -> dict[str, Any]:
        tried.append(store)
        return real(store)

    monkeypatch.setattr(module, "build", build)
    whole = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text("{not json}\n" + whole)
    answers = {get(page, name)[:2] for name in ("", "state") * 4}
    assert len(answers) == 1
    assert answers.pop()[0] == 503
    assert len(tried) == 1
    monkeypatch.setattr(module, "TRIED_AGAIN_S", 0.0)  # no file has changed, but some time has passed
    assert get(page)[0] == 503
    assert len(tried) == 2
    monkeypatch.setattr(module, "TRIED_AGAIN_S", 1e9)
    (path / "records.jsonl").write_text(whole)
    assert get(page)[0] == 200
    study = (path / "study.json").read_text()
    (path / "study.json").write_text("{")
    assert get(page)[0] == 503
    (path / "study.json").write_text(study)
    assert get(page)[0] == 200


def test_what_is_built_often_is_built_seldom(finished: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    real = report.build

    def build(store: Store) -> dict[str, Any]:
        built.append(store)
        return real(store)

    monkeypatch.setattr(module, "build", build)
    page = LivePage(finished.path)
    host, path = f"127.0.0.1:{urlsplit(page.address).port}", urlsplit(page.address).path
    for _ in range(20):
        assert page.answer(host, path)[0] == 200
        assert page.answer(host, f"{path}state")[0] == 200
    assert len(built) == 1
    page.close()


def test_what_cannot_be_served_is_told(tmp_path: Path, finished: Store) -> None:
    with pytest.raises(RunDirectoryError, match=r"study\.json"):
        LivePage(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AutotuneError, match=rf"--port must be free on 127\.0\.0\.1 but {port} is not"):
            LivePage(finished.path, port=port)


@pytest.mark.slow
def test_in_a_browser_it_moves_by_itself_and_tables_sort_and_filter(
    served: tuple[LivePage, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    page, path = served
    asked: list[str] = []
    real = page.answer

    def answer(host: str, name: str) -> object:
        asked.append(name.rpartition("/")[2])
        if asked.count("state") == 2:  # while the browser looks on, the study loses its end
            lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
            (path / "records.jsonl").write_text("".join(line for line in lines if '"kind":"conclusion"' not in line))
        return real(host, name)

    monkeypatch.setattr(page, "answer", answer)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = f"--virtual-time-budget=20000 --user-data-dir={tmp_path / 'profile'} --dump-dom"
    command = ["chromium", *flags.split(), *more.split(), page.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    assert asked.count("") >= 2, asked
    assert "autotune report · stopped" in done.stdout
    assert '<th class="sorts"' in done.stdout
    assert 'class="filter"' in done.stdout
