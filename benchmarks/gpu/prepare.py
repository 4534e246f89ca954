"""Before the hour, without a GPU: which published recipes differ as programs, with predictions.

    python -m benchmarks.gpu.prepare --out DIR --target h200 [--of dense|moe] [--minutes 60]

Needs XLA's CUDA plugin (the extra `screen`) in the version that the machine with the GPU has.
`table` takes its sets from here, and `ranks` its predictions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from autotune.compiler.predict import predict_step
from autotune.compiler.screen import Screener, open_screener
from autotune.compiler.targets import Target, Topology, load_target, target_here
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.spec import load_study
from autotune.settings.catalog import load_recipes
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from benchmarks.gpu.hour import Row, read_rows
from benchmarks.gpu.processes import Part, part
from benchmarks.gpu.search import which


def where(parser: argparse.ArgumentParser) -> None:
    """The option that names a GPU."""
    parser.add_argument(
        "--target", help="such as h200, see `autotune targets list`; default: the GPU that is here"
    )


def main() -> int:
    """Compiles all recipes, then predicts those that are programs of their own."""
    with part("prepare", __doc__ or "", 60.0, which, where) as found:
        done = prepare(found, found.args.target)
        return 0 if done is not None else 1


def prepare(found: Part, target: str | None) -> Row | None:
    """The sets to compare, and a prediction for each; None where the time is too short."""
    hour = found.hour
    sets = hour.do("sets", 90, lambda: {"sets": distinct(found, target)})
    if sets is None:
        return None
    hour.do("predictions", 30, lambda: {"predicted": predictions(found, sets["sets"], target)})
    return sets


def distinct(found: Part, target: str | None) -> list[Row]:
    """Every published recipe: its settings that this build has, and what compiling says of it."""
    known = KnownSettings(probe_build(sys.executable, platform="cuda"))
    recipes = {name: for_build(recipe.settings, known) for name, recipe in load_recipes().items()}
    recipes = {name: settings for name, settings in recipes.items() if settings}
    folder = found.hour.folder / "screen"
    arguments = ["predict", str(found.study(found.args.of)), "--json", *at(target)]
    for settings in recipes.values():
        arguments += ["--set", str(settings)]
    rows = found.machine.autotune(
        *arguments, limit_s=max(5.0, found.hour.left_s), folder=folder
    ).json()
    first: dict[tuple[object, ...], str] = {(rows[0].get("program"),): "the default"}
    return [named(name, row, first) for name, row in zip(recipes, rows[1:], strict=True)]


def named(name: str, row: Row, first: dict[tuple[object, ...], str]) -> Row:
    """A recipe, and which one before it is the same here.

    On one GPU no variable of NCCL makes another program, nor does a share of memory; what decides
    the device's own choice of kernels, and is in no compiled program either, does.
    """
    chooses = [(n, row["settings"][n]) for n in row.get("not_modelled", ()) if n.startswith("xla_")]
    key = (row.get("program"), *chooses)
    same_as = first.get(key)
    first.setdefault(key, name)
    return {
        "name": name,
        "settings": row["settings"],
        "fingerprint": row.get("program"),
        "same_as": same_as,
        "message": row.get("failure", ""),
    }


def predictions(found: Part, sets: list[Row], target: str | None) -> list[Row]:
    """A model's predictions for the default, and then for every set of another program."""
    study = found.study(found.args.of)
    gpu = load_target(target) if target else target_here()
    if gpu is None:
        raise StudyFileError("predictions need a GPU that is described: add --target")
    candidates = {
        "default": FlagSet(),
        **{r["name"]: FlagSet(r["settings"]) for r in sets if is_own_program(r)},
    }
    with open_screener(
        load_study(study),
        study_dir=study.parent,
        target=gpu,
        topology=Topology(1, 1),
        cache_dir=found.out / "home" / "cache" / "autotune" / "screen",
    ) as (_, screener):
        return [
            {"name": name, **predicted(screener, gpu, settings)}
            for name, settings in candidates.items()
        ]


def predicted(screener: Screener, gpu: Target, settings: FlagSet) -> Row:
    """The predicted step and the memory of one set, or why it does not compile."""
    result = screener.result(settings)
    if result.program is None:
        return {"failure": result.failure.message if result.failure else ""}
    memory = result.program.memory
    step_s = predict_step(result.program, gpu, Topology(1, 1)).step_s
    return {"step_s": step_s, "peak_bytes": memory.peak_bytes if memory else None}


def is_own_program(row: Row) -> bool:
    """Whether a set compiles, and to a program that none before it has."""
    return bool(row["fingerprint"]) and not row["same_as"] and not row["message"]


def at(target: str | None) -> list[str]:
    """Where to compile for: one GPU."""
    return ["--target", target, "--topology", "1x1"] if target else []


def prepared(out: Path, study: str) -> dict[str, Any]:
    """What `prepare` left for a study, by unit; nothing where it did not run."""
    rows = read_rows(out / f"prepare-{study}.jsonl")
    return {row["unit"]: row for row in rows if "unit" in row and "error" not in row}


if __name__ == "__main__":
    sys.exit(main())
