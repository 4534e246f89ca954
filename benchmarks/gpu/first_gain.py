"""The first proven gain over the defaults on one GPU, from search to use, in nine minutes.

    python -m benchmarks.gpu.first_gain --out DIR [--minutes 9] [--whole] [--dry-run]
    python -m benchmarks.gpu.first_gain --rehearse SEEDS

A study by `autotune run`; then its winner as a file, held against the run, used for some steps, and
the report. The budget of the study leaves `AFTER_S` for what follows it. With `--whole` and more
minutes the same study goes on with what nine minutes do not hold: isolated runs of the winner, and
its long run.

`--rehearse` runs the study on the virtual H100 of `benchmarks.time_to_result`, as many seeds with a
gain as without, and prints what came of them as JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from autotune.model.flags import FlagSet
from autotune.model.options import option_text, options_in
from autotune.model.records import ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.rundir.store import Store
from autotune.settings.space import Parameter, SearchSpace
from benchmarks.gpu.hour import Row
from benchmarks.gpu.machine import HERE
from benchmarks.gpu.processes import Part, part
from benchmarks.time_to_result import MACHINES, log_ratio_of
from harness.process_pool import process_pool
from harness.simulated_machine import parse_simulated
from harness.virtual_time import virtual_study

STUDY, DRY_STUDY = HERE / "first_gain.toml", HERE / "dry_gain.toml"

BEFORE_S, AFTER_S = 20.0, 50.0
"""What asking the build takes before the study's clock runs, and export, verify, exec and report
after it.
"""

PROVEN_WITHIN_S = 510.0
"""Eight and a half minutes: within these the winner must be proven."""

GAIN = 0.964
"""Step time of `remat = "minimal"` over the preset's own on an H100."""

STEPS = 20
"""For which the winner is used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns 0 where a gain is proven and its file holds."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if "--rehearse" in words:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rehearse", type=int, metavar="SEEDS", required=True)
        print(json.dumps(rehearse(parser.parse_args(words).rehearse), indent=1))
        return 0
    with part("first_gain", __doc__ or "", 9.0, whole) as found:
        return 0 if run(found) else 1


def whole(parser: argparse.ArgumentParser) -> None:
    """The option that asks for the whole proof."""
    parser.add_argument(
        "--whole", action="store_true", help="isolated runs and the long run too: a second call"
    )


def run(found: Part) -> bool:
    """All steps, each once, however often it is called; returns whether the winner's file holds."""
    hour, folder, kind = found.hour, found.hour.folder / "run", "whole " if found.args.whole else ""
    budget_s = hour.budget_s - BEFORE_S - AFTER_S
    study = DRY_STUDY if found.args.dry_run else STUDY
    if found.args.whole:
        text = (
            study.read_text(encoding="utf-8")
            .replace("isolated = 0\n", "")
            .replace("soak = 0\n", "")
        )
        study = hour.folder / "whole.toml"
        study.write_text(text, encoding="utf-8")
    words = ("run", str(study), "--run-dir", str(folder), "--time-budget", f"{budget_s:.0f}s")
    hour.do(
        f"{kind}study in {hour.budget_s / 60:g} min",
        hour.left_s - AFTER_S,
        lambda: step(found, "study", *words),
    )
    winner = winner_of(folder)
    if winner is None:
        hour.say("no gain is proven yet; the same command with more --minutes goes on")
        return False
    file = found.out / "winner.env"
    trainer = [
        sys.executable,
        "-m",
        "workloads",
        *workload_of(study, winner),
        "--steps",
        str(STEPS),
    ]
    steps = {
        "export": ("export", str(folder), "-o", str(file)),
        "verify": ("verify", str(file), "--run", str(folder), "--study", str(study)),
        "exec": ("exec", str(folder), "--", *trainer),
        "report": ("report", str(folder), "--html", str(found.out / "report.html")),
    }
    done = [
        hour.do(f"{kind}{name}", AFTER_S / len(steps), functools.partial(step, found, name, *words))
        for name, words in steps.items()
    ]
    hour.say(sentence_of(folder))
    return all(done)


def step(found: Part, name: str, *words: str) -> Row:
    """One command of autotune, and what it said; an error if it failed."""
    done = found.machine.autotune(
        *words, limit_s=max(5.0, found.hour.left_s), folder=found.hour.folder / name
    )
    row = {"status": done.status, "said": done.output[-6000:], "errors": done.errors[-2000:]}
    return (
        row
        if done.status == 0
        else {**row, "error": f"autotune {name} ended with status {done.status}"}
    )


def conclusion_of(folder: Path) -> ConclusionRecord | None:
    """What the run concluded last."""
    return Store.open(folder).last(ConclusionRecord) if folder.exists() else None


def winner_of(folder: Path) -> FlagSet | None:
    """The winner of the run."""
    end = conclusion_of(folder)
    return end.settings if end is not None and end.outcome is Outcome.WINNER else None


def sentence_of(folder: Path) -> str:
    """What the run concluded, in words."""
    end = conclusion_of(folder)
    return end.sentence if end is not None else "nothing is concluded"


def workload_of(study: Path, winner: FlagSet) -> list[str]:
    """The workload of a study with the winner's options, as `python -m workloads` takes them."""
    workload = tomllib.loads(study.read_text(encoding="utf-8"))["workload"]
    options = {**workload.get("options", {}), **options_in(winner)}
    return [
        workload["entry"],
        *(word for n, v in options.items() for word in ("--set", f"{n}={json.dumps(v)}")),
    ]


# ------------------------------------------------------------------ rehearsal


def rehearse(seeds: int) -> dict[str, Any]:
    """Results of as many studies with a gain as without on the virtual H100, in minutes."""
    with process_pool() as pool:
        with_gain = list(pool.map(one, [(seed, True) for seed in range(seeds)]))
        without = list(pool.map(one, [(seed, False) for seed in range(seeds)]))
    proven = [row["proven_s"] for row in with_gain if row["is_winner"]]
    return {
        "seeds": seeds,
        "proven": len(proven),
        "proven within 8.5 min": sum(s + BEFORE_S <= PROVEN_WITHIN_S for s in proven),
        "median minutes to the proof": round((statistics.median(proven) + BEFORE_S) / 60, 2)
        if proven
        else None,
        "latest minutes": round((max(proven) + BEFORE_S) / 60, 2) if proven else None,
        "slower than told or not faster at all": sum(
            row["is_winner"] and row["truth"] >= 0 for row in with_gain
        ),
        "median gain of the winners, %": round(
            100
            - 100
            * statistics.median(
                [float(np.exp(row["truth"])) for row in with_gain if row["is_winner"]] or [1.0]
            ),
            2,
        ),
        "winners where nothing gains": sum(row["is_winner"] for row in without),
    }


def one(job: tuple[int, bool]) -> Row:
    """One study on the virtual H100; its options and flags have effects that the seed draws."""
    seed, has_gain = job
    machine, effects = MACHINES["H100"], effects_of(seed, has_gain=has_gain)
    told = tomllib.loads(STUDY.read_text(encoding="utf-8"))
    simulation = {"step_s": machine.step_s, "effects": effects, "noise": asdict(machine.noise)}
    parts = {name: told[name] for name in ("device", "measure", "confirm")}
    budget = f"{60 * 9 - BEFORE_S - AFTER_S:.0f}s"
    search = {"trials": told["search"]["trials"], "time_budget": budget}
    spec = parse_simulated(
        {
            "name": "rehearsed",
            "seed": seed,
            "workload": {"entry": "llama"},
            **parts,
            "search": search,
            "simulation": simulation,
        }
    )
    first = [(s["name"], renamed(s["options"])) for s in told["search"]["first"]]
    store = virtual_study(spec, space_of(told), machine.times, first=first)
    end, pairs = store.of(ConclusionRecord)[-1], store.of(ConfirmRun)
    is_winner = end.outcome is Outcome.WINNER and end.settings is not None
    return {
        "is_winner": is_winner,
        "truth": log_ratio_of(end.settings, effects)
        if is_winner and end.settings is not None
        else 0.0,
        "proven_s": pairs[-1].at_s if pairs else end.at_s,
        "trials": len(store.of(TrialResult)),
    }


def renamed(options: dict[str, Any]) -> FlagSet:
    """Options as settings that the simulated machine takes for flags."""
    return FlagSet({f"xla_{name}": text_of(value) for name, value in options.items()})


def text_of(value: Any) -> str:
    """A value as a flag's."""
    return value if isinstance(value, str) else option_text(value)


def space_of(told: dict[str, Any]) -> SearchSpace:
    """The study's settings and options, each with its default first."""
    search = told["search"]
    defaults = {**told["workload"]["options"], "remat": "dots", "batch": 8, "scan": True}
    parameters = []
    for name, values in search["options"].items():
        texts = [text_of(defaults[name]), *(text_of(v) for v in values if v != defaults[name])]
        parameters.append(Parameter(name=f"xla_{name}", choices=tuple(texts), default=texts[0]))
    for name, values in search["settings"].items():
        texts = ["default", *map(text_of, values)]
        parameters.append(Parameter(name=name, choices=tuple(texts), default="default"))
    return SearchSpace(tuple(parameters))


def effects_of(seed: int, *, has_gain: bool) -> dict[str, float]:
    """Factors of the step time: `remat = "minimal"` as measured, others from 0.98 to 1.05."""
    rng = np.random.default_rng([104, seed])
    least = 0.98 if has_gain else 1.0
    effects = {}
    for parameter in space_of(tomllib.loads(STUDY.read_text(encoding="utf-8"))).parameters:
        for value in parameter.choices[1:]:
            effects[f"{parameter.name}={value}"] = float(rng.uniform(least, 1.05))
    effects["xla_remat=minimal"] = GAIN if has_gain else 1.0
    return effects


if __name__ == "__main__":
    sys.exit(main())
