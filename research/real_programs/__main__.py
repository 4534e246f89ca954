"""`autotune tune` held to training programs that nobody here wrote, on a CPU.

    python -m research.real_programs --into FOLDER [--minutes 12] [NAME ...]

For each program of `programs.toml`: an environment of its own (made once, kept in FOLDER), its source unpacked if it
has one, then ``autotune tune --yes`` as a newcomer types it. What was detected, what had to be told, the verdict and
how long it took go into ``research/results/real_programs.json``, row by row. It needs Python 3.12 and a package
index, and takes about a quarter of an hour a program. Run it on a machine that does nothing else: what can be proven
hangs on that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path
from typing import Any

import autotune

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "research/results/real_programs.json"
AROUND_S = 600.0
"""What a study may take beyond its time budget, looking and installing left out, before it counts as one that hangs."""


def main() -> int:
    """Runs what was asked for, one after the other."""
    programs = tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(programs)}")
    parser.add_argument("--into", type=Path, required=True, help="where environments, sources and runs lie")
    parser.add_argument("--minutes", type=float, default=12.0, help="time budget of each study, default %(default)s")
    parser.add_argument("--python", default="python3.12", help="interpreter of the environments, default %(default)s")
    args = parser.parse_args()
    if unknown := set(args.names) - set(programs):
        parser.error(f"NAME must be one of {', '.join(programs)} but got {', '.join(sorted(unknown))}")
    for name in args.names or programs:
        into = args.into.resolve() / name
        print(f"{name}: its environment", flush=True)
        python = installed(programs[name], into, args.python)
        row = tuned(programs[name], into, python, args.minutes)
        known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**known, name: row}, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {row['outcome']} after {row['took_s'] / 60:.1f} min", flush=True)
    return 0


def installed(program: dict[str, Any], into: Path, interpreter: str) -> Path:
    """The interpreter of a program's environment; both are made if they are not there."""
    python, mark = into / "env/bin/python", into / "env/.made"
    if mark.exists() and mark.read_text() == repr(program["packages"]):
        return python
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run([interpreter, "-m", "venv", "--clear", str(into / "env")], check=True)
    # pip alone looks for an hour for versions that go together; uv takes seconds.
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "uv"], check=True)
    uv = [str(into / "env/bin/uv"), "pip"]
    wanted = "\n".join(program["packages"])
    told = subprocess.run(
        [*uv, "compile", "--quiet", "--no-annotate", "--no-header", "--python", str(python), "-"],
        input=wanted, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    kept = [line for line in told.splitlines() if not re.match(program.get("without", "$"), line)]
    (into / "packages.txt").write_text("\n".join(kept) + "\n", encoding="utf-8")
    words = ["install", "--quiet", "--no-deps", "--python", str(python), "-r", str(into / "packages.txt")]
    subprocess.run([*uv, *words], check=True)
    if "source" in program:
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(into), program["source"]]
        subprocess.run([str(python), "-m", "pip", *download], check=True)
        with tarfile.open(next(into.glob("*.tar.gz"))) as archive:
            archive.extractall(into / "source", filter="data")
    if "repository" in program:
        source = into / "source" / name_of(program["repository"])
        if not source.exists():
            subprocess.run(["git", "clone", "--quiet", program["repository"], str(source)], check=True)
            subprocess.run(["git", "checkout", "--quiet", program["commit"]], cwd=source, check=True)
        subprocess.run([sys.executable, str(HERE / program["prepare"]), str(source), str(python)], check=True)
    mark.write_text(repr(program["packages"]))
    return python


def name_of(repository: str) -> str:
    """The folder that `git clone` would make."""
    return repository.rpartition("/")[2]


def tuned(program: dict[str, Any], into: Path, python: Path, minutes: float) -> dict[str, Any]:
    """What `autotune tune` made of a program: what it found out, what it said in the end, and how long it took."""
    work = next((into / "source").iterdir()) / program["folder"] if program.keys() & {"source", "repository"} else into / "work"
    work.mkdir(parents=True, exist_ok=True)
    command = [part.format(python=python, here=HERE) for part in shlex.split(program["command"])]
    name = into.name
    (work / f"{name}.toml").unlink(missing_ok=True)  # else `tune` would go on with the study of the last time
    shutil.rmtree(work / "runs", ignore_errors=True)
    tune = ["tune", "--yes", "--name", name, "--platform", "cpu", "--time-budget", f"{minutes:g}m", *program["told"]]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *tune, "--", *command], cwd=work, capture_output=True, text=True,
        timeout=60 * minutes + AROUND_S, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    took_s = time.monotonic() - began
    (into / "tune.log").write_text(done.stdout + "\n--- stderr\n" + done.stderr, encoding="utf-8")
    run = autotune.load(work / "runs" / name) if (work / "runs" / name).exists() else None
    said = [line for line in done.stderr.splitlines() if line.strip()][-3:]
    return {
        "title": program["title"],
        "told": program["told"],
        "detected": detected(done.stdout + done.stderr),
        "exit": done.returncode,
        "minutes": minutes,
        "took_s": round(took_s, 1),
        "outcome": str(run.outcome) if run and run.outcome else "none",
        "verdict": run.verdict if run else " ".join(said),
        "trials": len(run.trials) if run else 0,
    }


def detected(text: str) -> dict[str, str]:
    """The lines by which `tune` says what it understood."""
    wanted = ("interpreter", "steps", "times", "search", "time", "can prove")
    found = {}
    for line in text.splitlines():
        name, words = line[:13].strip(), re.sub(r"\S*/env/bin/", "", line[13:].strip())
        if name in wanted and words:
            found[name] = words
    return found


if __name__ == "__main__":
    sys.exit(main())
