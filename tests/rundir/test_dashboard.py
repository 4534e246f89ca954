"""A study opens in optuna-dashboard: by the journal in its run directory, or by the storage that it was given."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.runs import EFFECTS, Run, replay_study


def get(url: str) -> Any:
    """What a server answers, once it does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(150):
        try:
            with opener.open(url, timeout=5) as response:
                return json.load(response)
        except urllib.error.URLError:
            time.sleep(0.2)
    raise AssertionError(f"{url} never answered")


@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "sqlite:///{}/study.db"])
def test_the_dashboard_shows_every_trial(run_replay: Run, tmp_path: Path, url: str | None) -> None:
    pytest.importorskip("optuna_dashboard", reason="needs optuna-dashboard")
    url = url.format(tmp_path) if url is not None else None
    _, store, _ = run_replay(replay_study(effects=EFFECTS), trials=7, storage=url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    storage = url or str(store.path / "optuna.log")
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()", storage]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        base = f"http://127.0.0.1:{port}/api/studies"
        (study,) = get(base)["study_summaries"]
        assert study["study_name"].startswith("replayed-")
        trials = get(f"{base}/{study['study_id']}")["trials"]
        assert len(trials) == 7
        assert {t["state"] for t in trials} == {"Complete"}
    finally:
        server.terminate()
        server.wait(timeout=20)
