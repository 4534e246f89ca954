"""The hour with a GPU, dry on the CPU; killed, it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tables import toml_beside

ROOT = Path(__file__).parents[1]


def command(part: str, out: Path, *more: str) -> list[str]:
    """One part of the hour."""
    return [sys.executable, "-m", f"benchmarks.gpu.{part}", "--out", str(out), *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def do(part: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs a part to its end."""
    words = command(part, out, *more)
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


def kill_at(part: str, out: Path, seen: str, *more: str) -> bool:
    """Starts a part and kills it, and it alone, once it has printed `seen`; whether it came so far."""
    words, quiet = command(part, out, *more), subprocess.DEVNULL
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=quiet, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if seen in line:
                run.send_signal(signal.SIGKILL)
                run.wait()
                return True
    return False


def rows(out: Path, part: str) -> list[dict[str, Any]]:
    """The rows of a part that can be read."""
    found = []
    for line in (out / f"{part}.jsonl").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def units(out: Path, part: str) -> Counter[str]:
    """How often each unit was done."""
    return Counter(r["unit"] for r in rows(out, part) if "unit" in r and "error" not in r)


def spent_s(out: Path, part: str) -> float:
    """Seconds that all sessions of a part took together."""
    file = out / part / "spent.txt"
    return float(file.read_text()) if file.exists() else 0.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dry_run_of_every_part_starts_real_processes_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    assert kill_at("accept", tmp_path, "interleaved, about", "--dry-run")
    before, spent_before_s = units(tmp_path, "accept"), spent_s(tmp_path, "accept")
    with (tmp_path / "accept.jsonl").open("a") as stream:  # a power cut in the middle of a line
        stream.write('{"unit": "workload llama-small", "took')
    for part in ("accept", "search", "table", "ranks"):
        done = do(part, tmp_path, "--dry-run")
        assert done.returncode == 0, done.stdout + done.stderr
    after = units(tmp_path, "accept")
    assert set(after.values()) == {1}
    assert before.keys() <= after.keys()
    assert spent_s(tmp_path, "accept") > spent_before_s  # nobody gets more minutes by being killed
    found = {r["unit"]: r for r in rows(tmp_path, "accept") if "unit" in r}
    assert not [name for name, row in found.items() if "error" in row or "failure" in row]
    assert len(set(found["interleaved"]["fingerprints"])) == 1
    (study,) = (r for r in rows(tmp_path, "search-dense") if "unit" in r)
    assert study["status"] == 0
    assert study["sentence"]
    refused = do("report", tmp_path, "--docs")
    assert refused.returncode == 2
    assert re.search("docs/gpu.md must .* DRY RUN", refused.stderr)
    empty = do("report", tmp_path / "nothing")
    assert empty.returncode == 2
    assert "hold results" in empty.stderr
    assert do("report", tmp_path).returncode == 0
    assert all("DRY RUN" in x for x in (tmp_path / "gpu.md").read_text().splitlines() if x.startswith("#"))


@pytest.mark.gate
def test_figures_of_a_dry_run_and_measured_ones_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "made_by.json").write_text(json.dumps({"on": "NVIDIA H200", "dry": False}))
    done = do("search", tmp_path, "--dry-run")
    assert done.returncode == 1
    assert "one machine" in done.stderr
    assert not (tmp_path / "search-dense.jsonl").exists()
    assert do("ranks", tmp_path).returncode == 0, "what only reads may run on another machine"


def test_the_page_and_the_readme_say_what_was_measured(tmp_path: Path) -> None:
    out, docs = tmp_path / "gpu", ROOT / "docs"
    shutil.copytree(ROOT / "benchmarks" / "results" / "gpu", out)
    assert do("report", out).returncode == 0
    for made in (out / "gpu.md", *out.glob("*.svg")):
        assert made.read_text() == (docs / made.name).read_text(), "run benchmarks.gpu.report --docs"

    page = (docs / "gpu.md").read_text()
    ratios, moe = (ratios_of(page, f"The {name} model") for name in ("dense", "moe"))
    fastest, slowest = moe  # the plot has all
    assert 0 < fastest[0] < slowest[0], "one is faster for the mixture of experts"
    near = [max(-low, high) for _, low, high in ratios if low < 0 < high]
    slower = sorted(gain for gain, low, _ in ratios if low > 0)
    few, many = [s for s in slower if s < 5], [s for s in slower if s > 5]
    assert len(near) + len(slower) == len(ratios) == 10, "one is faster"
    (order,) = [r for r in rows(out, "ranks") if r.get("unit") == "table dense"][-1:]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"{len(near)} differs from it by less than {max(near):.1f} %, {len(few)} cost {few[0]:.1f} to {few[-1]:.1f} % "
        f"and {len(many)} cost {many[0]:.1f} to {many[-1]:.1f} %. The order was predicted without a GPU (rank "
        f"correlation {order['agreement']['spearman']:.2f})"
    ) in readme
    assert (found := re.search(r"^(\S+) is .* step time ratio ([\d.]+) \[", page, re.M)) is not None
    assert f"proved, exported and applied `{found[1]}`: {found[2]} of the step" in readme


def ratios_of(page: str, title: str) -> list[list[float]]:
    """Ratio and interval of every set of a table of the page, in per cent over the default's."""
    part = page[page.index(f"## {title}") :].split("\n## ")[0]
    table = re.findall(r"^\| \w\S* \|.*\| ([\d.]+) \[([\d.]+), ([\d.]+)\] \|", part, re.M)
    return [[100 * (float(x) - 1) for x in found] for found in table]


def printed(name: str) -> str:
    """What a program of `programs.toml` prints."""
    command = [sys.executable, "-c", toml_beside(__file__, "programs.toml")[name]]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_intervals_of_a_table_hold_all_together() -> None:
    assert float(printed("coverage")) <= 0.05 + 3 * 0.011  # three standard deviations of a share of 400


@pytest.mark.gate
def test_ranks_tell_equal_opposite_and_unrelated_orders_apart() -> None:
    equal, opposite, unrelated, few, flat = json.loads(printed("ranks"))
    assert (equal["spearman"], equal["kendall"]) == pytest.approx((1.0, 1.0))
    assert (opposite["spearman"], opposite["kendall"]) == pytest.approx((-1.0, -1.0))
    assert unrelated["low"] < 0 < unrelated["high"]
    assert (few["spearman"], few["count"], flat["spearman"], flat["count"]) == (None, 3, None, 5)
