"""The command `worker`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def worker(
    join: Annotated[
        str,
        typer.Option(metavar="ADDRESS|FOLDER", help="Where the driver listens, tls://HOST:PORT; or its RUN_DIR.tls."),
    ],
    tls: Annotated[
        Path | None, typer.Option(help="Folder of the pool's certificate: a copy of RUN_DIR.tls; with an address.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="What this worker brings, such as 0-3: GPUs, or cores where there is no GPU.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker; default: its machine and devices.")] = None,
    patience: Annotated[str, typer.Option(help="How long it waits for a driver, the first and each later one.")] = "1h",
) -> None:
    """Joins a pool with this machine, and stays until the study is over.

    Ends with status 75 if it was told to stop (SIGTERM, SIGUSR1), or found no driver; what it had begun is given to
    others.
    """
    import socket

    from autotune.cluster import join_pool
    from autotune.machine import (
        caller_environment,
        find_gpus,
        parse_devices,
        reserve_devices,
        restrict_devices,
        visible_gpu_ids,
        worker_name,
    )
    from autotune.model import StudyFileError, parse_duration

    try:
        patience_s = parse_duration(patience)
    except ValueError as error:
        raise StudyFileError(f"--patience must look like 30m or 8h but got {patience!r}; say its unit") from error
    own = parse_devices(devices) if devices else ()
    kind = "cuda" if find_gpus() else "cpu"
    if own:
        restrict_devices(kind, own)
    env = caller_environment()
    visible = visible_gpu_ids(env) if kind == "cuda" else ""
    held = own or (parse_devices(visible) if visible else ())
    with reserve_devices(kind, () if "SLURM_JOB_ID" in env else held):  # a job's devices are its own already
        status = join_pool(
            join, tls=tls, name=name or worker_name(env, socket.gethostname(), own), devices=len(held) or None,
            patience_s=patience_s, say=lambda line: print(f"autotune: {line}", file=sys.stderr, flush=True),
        )  # fmt: skip
    raise typer.Exit(status)
