"""Before the hour, without a GPU: which published recipes are programs of their own, and what a model says of each.

    python -m benchmarks.gpu.prepare --out DIR --target h200 [--of dense|moe] [--minutes 60]

Needs XLA's CUDA plugin (the extra `screen`) in the version that the machine with the GPU has. `table` takes its sets
from here, and `ranks` its predictions.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

from autotune.compiler.predict import predict_step
from autotune.compiler.screen import Screener, open_screener
from autotune.compiler.targets import Target, Topology, load_target, target_here
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.spec import load_study
from benchmarks.gpu.hour import Row, read_rows
from benchmarks.gpu.machine import as_toml
from benchmarks.gpu.processes import Part, part
from benchmarks.gpu.search import which


def where(parser: argparse.ArgumentParser) -> None:
    """The option that names a GPU."""
    parser.add_argument("--target", help="such as h200, see `autotune targets list`; default: the GPU that is here")


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
    """Every published recipe: its settings as far as this build has them, and what compiling says of it."""
    study = recipes_study(found.study(found.args.of), found.hour.folder)
    folder = found.hour.folder / "screen"
    arguments = ["screen", str(study), "--recipes", "--json", *at(target)]
    said = found.machine.autotune(*arguments, limit_s=max(5.0, found.hour.left_s), folder=folder).json()
    reference = said.get("reference", {}).get("fingerprint")
    first: dict[tuple[object, ...], str] = {(reference,): "the default"} if reference else {}
    return [named(row, first) for row in said["sets"]]


def named(row: Row, first: dict[tuple[object, ...], str]) -> Row:
    """A recipe, and which one before it is the same here.

    On one GPU no variable of NCCL makes another program, nor does a share of memory; what decides the device's own
    choice of kernels, and is in no compiled program either, does.
    """
    chooses = [(n, row["settings"][n]) for n in row.get("to_measure", ()) if n.startswith("xla_")]
    key, name = (row.get("fingerprint"), *chooses), row["name"].removeprefix("recipe ")
    same_as = row.get("same_as") or first.get(key)
    first.setdefault(key, name)
    return {
        "name": name, "settings": row["settings"], "fingerprint": row.get("fingerprint"), "same_as": same_as,
        "message": row.get("message", ""),
    }  # fmt: skip


def recipes_study(study: Path, folder: Path) -> Path:
    """A study of the same workload that searches next to nothing: recipes are compiled, and little besides."""
    data = tomllib.loads(study.read_text(encoding="utf-8"))
    data["search"] = {"trials": 1, "settings": {"xla_gpu_autotune_level": [4]}}
    sections = ("workload", "device", "search")
    tables = "".join(f"{name} = {as_toml(data[name])}\n" for name in sections)
    path = folder / "recipes.toml"
    path.write_text(f'name = "recipes"\n{tables}', encoding="utf-8")
    return path


def predictions(found: Part, sets: list[Row], target: str | None) -> list[Row]:
    """What a model says of the default and of every set that is a program of its own, the default first."""
    study = found.study(found.args.of)
    gpu = load_target(target) if target else target_here()
    if gpu is None:
        raise StudyFileError("predictions need a GPU that is described: add --target")
    candidates = {"default": FlagSet(), **{r["name"]: FlagSet(r["settings"]) for r in sets if is_own_program(r)}}
    with open_screener(
        load_study(study), study_dir=study.parent, target=gpu, topology=Topology(1, 1),
        cache_dir=found.out / "home" / "cache" / "autotune" / "screen",
    ) as (_, screener):  # fmt: skip
        return [{"name": name, **predicted(screener, gpu, settings)} for name, settings in candidates.items()]


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
