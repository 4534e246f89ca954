"""Kills and stops studies at random moments, on lanes of each kind, and counts what is left.

    python -m benchmarks.kill_tally [--one-lane 30] [--lanes 60] [--slurm 30] [--dask 30] [--real-one-lane 15]
        [--real-lanes 35] [--real-slurm 15] [--real-dask 15] [--seed 0] [--out FILE]

Each number is that of strikes; one study takes about eight of them, then it is left to finish and everything of it is
counted. Simulated studies on several lanes of this machine are mirrored in PostgreSQL where that is installed; a part
on SLURM is left out where that is not. The tally is written after each study, so that one that is stopped is of use.
Struck are, as chance has it: the driver (SIGKILL, SIGTERM, SIGUSR1), a lane (killed, or frozen for some seconds),
a Dask worker, a process that measures, and the database.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.machine import describe_machine
from harness.kills import REAL, SIMULATED, kill_study
from harness.places import Here, InSlurmJob, OnDask, Place
from harness.sandbox import Postgres, Slurm, missing_slurm
from harness.tally import STAGES

STRIKES_EACH = 8
"""Of one study: so many that most of its stages are struck, so few that it ends."""


class Part(NamedTuple):
    """Studies of one kind on lanes of one kind.

    Attributes:
        lanes: Of this machine, nodes of a SLURM job, or Dask workers.
        where: ``here``, ``slurm`` or ``dask``.
        strikes: In all, unless the command line says otherwise.
    """

    lanes: int
    is_real: bool
    where: str
    strikes: int


PARTS = {
    "one_lane": Part(1, False, "here", 30),
    "lanes": Part(4, False, "here", 60),
    "slurm": Part(2, False, "slurm", 30),
    "dask": Part(3, False, "dask", 30),
    "real_one_lane": Part(1, True, "here", 15),
    "real_lanes": Part(2, True, "here", 35),
    "real_slurm": Part(2, True, "slurm", 15),
    "real_dask": Part(2, True, "dask", 15),
}
EXACT = ("orphans", "lost", "doubled", "sets_measured_twice", "trials_with_wrong_samples")


def studies(name: str, part: Part, strikes: int, seed: int) -> Iterator[dict[str, Any]]:
    """Strikes one study after the other until there were so many strikes in all; gives the tally of each."""
    rng = random.Random(f"{seed}/{name}")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(_cluster()) if part.where == "slurm" else None
        while strikes > 0:
            with tempfile.TemporaryDirectory() as folder, _database(part) as database:
                place: Place = OnDask(part.lanes) if part.where == "dask" else Here(part.lanes)
                if cluster is not None:
                    place = InSlurmJob(cluster, part.lanes)
                found = kill_study(
                    Path(folder),
                    REAL if part.is_real else SIMULATED,
                    trials=4 if part.is_real else 30,
                    strikes=min(strikes, STRIKES_EACH),
                    rng=rng,
                    place=place,
                    delay_s=0.04,
                    database=database,
                )
            strikes -= len(found["strikes"])
            yield {"part": name, **found}


@contextlib.contextmanager
def _cluster() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory() as folder, Slurm(Path(folder), node_count=2) as cluster:
        yield cluster


@contextlib.contextmanager
def _database(part: Part) -> Iterator[Postgres | None]:
    """An empty database for a simulated study on several lanes."""
    if part.is_real or part.where != "here" or part.lanes == 1 or Postgres.programs() is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as database:
        yield database


def summary(tallies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where all strikes fell, and what became of the studies."""
    strikes = [s for t in tallies for s in t["strikes"]]
    in_database = [t["in_database"] for t in tallies if "in_database" in t]
    return {
        "strikes": len(strikes),
        "while_real_workers_measure": sum(s["real_workers_measure"] for s in strikes),
        "studies": len(tallies),
        "trials_asked": sum(t["asked"] for t in tallies),
        "trials": sum(t["trials"] for t in tallies),
        "studies_without_exactly_one_conclusion": sum(t["conclusions"] != 1 for t in tallies),
        **{what: sum(t[what] for t in tallies) for what in EXACT},
        "lost_in_database": sum(d["lost"] for d in in_database),
        "doubled_in_database": sum(d["doubled"] for d in in_database),
        "by_engine": Counter(s["engine"] for s in strikes),
        "by_victim": Counter(s["victim"] for s in strikes),
        "by_stage": {stage: sum(s["stage"] == stage for s in strikes) for stage in STAGES},
        "by_stage_while_real_workers_measure": {
            stage: sum(s["stage"] == stage and s["real_workers_measure"] for s in strikes) for stage in STAGES
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; prints the summary and writes it, with each study's tally, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, part in PARTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=part.strikes)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    tallies: list[dict[str, Any]] = []
    for name, part in PARTS.items():
        if part.where == "slurm" and missing_slurm():
            print(f"{name} is left out: SLURM is not installed here")
            continue
        for tally in studies(name, part, getattr(options, name), options.seed):
            tallies.append(tally)
            fell = ", ".join(f"{s['victim']} at {s['stage']}" for s in tally["strikes"])
            print(f"{name}: {fell}; { ({what: tally[what] for what in ('trials', *EXACT)}) }", flush=True)
            if options.out:
                found = {"provenance": describe_machine(), "summary": summary(tallies), "studies": tallies}
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(tallies), indent=1))


if __name__ == "__main__":
    main()
