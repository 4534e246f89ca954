"""Spot checks of the atlas: random rows, compiled one by one and anew.

    python -m research.atlas_spot [--each 30] [--seed 0] [--into research/results]
    python -m research.atlas_spot --steady dense-one-gpu NAME=VALUE   # one row, compiled ten times

Draws as many rows that say ``same`` as rows that say ``changes``, of the release that is installed, and compiles each
value alone, without the cache. A row of ``same`` is right where the program is the default's; one of ``changes`` where
it is the very program that the table names. Some settings make the compiler itself unsteady: compiled anew they give
now one program, now another. Where a program is neither the table's nor the default's it is compiled again, up to
``TRIES`` times; the row is right if the table's comes up, and named as unsteady. Rows that act only with others
(``needs``) are not drawn: alone they do nothing.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from autotune.compiler.screen import open_screener
from autotune.compiler.targets import compiler_versions
from autotune.model.flags import FlagSet
from autotune.settings.atlas import FOLDER, AtlasRow, AtlasVerdict, read_atlas
from harness.build_atlas import planned_cells

HERE = Path(__file__).parent

TRIES = 6
"""Compilations, at most, of a value whose program is not that of the table."""

REPEATS = 10
"""Compilations that tell whether a value gives the same program each time."""


def drawn(rows: list[AtlasRow], each: int, seed: int) -> list[AtlasRow]:
    """So many random rows of either verdict, in the order of their cells."""
    draw = random.Random(seed)
    found: list[AtlasRow] = []
    for verdict in (AtlasVerdict.SAME, AtlasVerdict.CHANGES):
        fitting = [r for r in rows if r.kind == "setting" and r.workload and r.verdict is verdict and not r.needs]
        found += draw.sample(fitting, min(each, len(fitting)))
    return sorted(found, key=lambda r: (*r.cell, r.name, r.value))


def checked(rows: list[AtlasRow]) -> Iterator[dict[str, Any]]:
    """Each row with what compiling it alone gave; rows of one cell share the default's program."""
    for (_, kind, target, gpus), of_cell in groupby(rows, key=lambda r: r.cell):
        cell = planned_cells([kind], [target], [gpus])[0]
        with open_screener(cell.study, study_dir=HERE, target=cell.target, topology=cell.topology) as (_, screener):
            reference = screener.reference().fingerprint
            for row in of_cell:
                program = screener.fingerprint(FlagSet({row.name: row.value}))
                programs = [program]
                if row.verdict is AtlasVerdict.SAME:
                    is_right = program == reference
                else:
                    while program not in (reference, None) and not _is_of(row, program) and len(programs) < TRIES:
                        programs.append(program := _compiled_anew(row))
                    is_right = program != reference and _is_of(row, program)
                words = "right" if is_right else "WRONG"
                more = f" ({len(set(programs))} programs in {len(programs)} compilations)" if programs[1:] else ""
                print(f"{words}: {cell}: {row.name}={row.value} {row.verdict}{more}", flush=True)
                told: dict[str, Any] = {"row": row.model_dump(mode="json", exclude_defaults=True), "is_right": is_right}
                yield {**told, "unsteady": [p and p[: len(row.program)] for p in programs]} if programs[1:] else told


def _is_of(row: AtlasRow, program: str | None) -> bool:
    return (program or "").startswith(row.program)


def _compiled_anew(row: AtlasRow) -> str | None:
    """Fingerprint of the program that a row's value gives in a process that compiled nothing before."""
    _, kind, target, gpus = row.cell
    cell = planned_cells([kind], [target], [gpus])[0]
    with open_screener(cell.study, study_dir=HERE, target=cell.target, topology=cell.topology) as (_, screener):
        return screener.fingerprint(FlagSet({row.name: row.value}))


def steadiness(rows: list[AtlasRow], kind: str, setting: str) -> dict[str, Any]:
    """How often each program comes of a row's value, compiled by a process of its own each time."""
    name, _, value = setting.partition("=")
    row = next(r for r in rows if r.workload == kind and r.name == name and r.value == value and r.program)
    programs = Counter((_compiled_anew(row) or "none")[: len(row.program)] for _ in range(REPEATS))
    told = row.model_dump(mode="json", exclude_defaults=True)
    return {"row": told, "compilations": REPEATS, "programs": dict(programs.most_common())}


def main() -> None:
    """Entry point; writes what was found as JSON, row by row, and goes on where it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=HERE / "results")
    parser.add_argument("--steady", nargs=2, metavar=("KIND", "NAME=VALUE"))
    arguments = parser.parse_args()
    jaxlib = compiler_versions()["jaxlib"]
    if arguments.steady:
        found = steadiness([r for r in read_atlas(FOLDER) if r.jaxlib == jaxlib], *arguments.steady)
        path = arguments.into / f"atlas_steady_{jaxlib}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{found['compilations']} compilations, {len(found['programs'])} programs: {path}")
        return
    path = arguments.into / f"atlas_spot_{jaxlib}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = drawn([r for r in read_atlas(FOLDER) if r.jaxlib == jaxlib], arguments.each, arguments.seed)
    wanted = [r.model_dump(mode="json", exclude_defaults=True) for r in rows]
    # Of an older table, or of other draws, nothing is taken over.
    told = [f for f in before.get("rows", []) if f["row"] in wanted]
    done = [f["row"] for f in told]
    for one in checked([row for row, words in zip(rows, wanted, strict=True) if words not in done]):
        told.append(one)
        wrong = sum(not f["is_right"] for f in told)
        result = {"jaxlib": jaxlib, "seed": arguments.seed, "asked": len(rows), "checked": len(told), "wrong": wrong}
        path.write_text(json.dumps({**result, "rows": told}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(told)} rows, {sum(not f['is_right'] for f in told)} wrong: {path}")


if __name__ == "__main__":
    main()
