"""The doors to pools. Dask is imported behind them, when one is opened: no other study needs it to be installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cluster.certificates import ADDRESS
from autotune.cluster.engine import Message
from autotune.model import LaunchError

if TYPE_CHECKING:
    from autotune.cluster.dask_engine import DaskEngine

DEFAULT_LISTEN = "tls://0.0.0.0:8786"


def pool_address(text: str) -> str:
    """An address as Dask takes it, from ``HOST:PORT`` with or without ``tls://``; of those who join and who listen.

    Raises:
        LaunchError: If it is not encrypted, or no address.
    """
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rpartition(":")
    if scheme not in ("", "tls") or not host or not port.isdigit() or int(port) > 65_535:
        raise LaunchError(
            f"a pool's address must look like tls://HOST:PORT but got {text!r}; no pool is "
            "without TLS, and workers join where `autotune run --listen` says that it does"
        )
    return f"tls://{host}:{port}"


def open_pool(study: Message, *, tls: Path, listen: str = DEFAULT_LISTEN, **options: Any) -> DaskEngine:
    """Makes the certificate if there is none, listens, and gives the engine; see `DaskEngine`.

    Raises:
        LaunchError: If Dask is not installed, the pool cannot listen, or its certificate cannot be used.
    """
    try:
        from autotune.cluster.certificates import make_certificates
        from autotune.cluster.dask_engine import DaskEngine

        make_certificates(tls)
    except ImportError as error:
        raise _not_installed(error) from error
    engine = DaskEngine(study, tls=tls, listen=pool_address(listen), **options)
    with contextlib.suppress(OSError):  # a mounted secret cannot be written, and need not be
        (tls / ADDRESS).write_text(engine.address + "\n", encoding="utf-8")
    return engine


def join_pool(
    where: str, *, tls: Path | None, name: str, devices: int | None, patience_s: float, say: Callable[[str], None]
) -> int:
    """Joins a pool and stays until its study is over; gives the exit status. See `membership.be_member`.

    Args:
        where: Where the driver listens, or the folder of the pool's certificate on a disk that the driver sees, too.
        tls: Folder of the pool's certificate, if `where` is an address.
        name: What this worker is called.
        devices: How many devices it brings; None if that is not known.
        patience_s: How long it waits for a driver, seconds.
        say: Told what happens.

    Raises:
        LaunchError: If Dask is not installed, or the pool has another certificate.
        NodeLostError: If no driver was there for `patience_s` seconds.
    """
    try:
        from autotune.cluster.membership import Membership, be_member
    except ImportError as error:
        raise _not_installed(error) from error
    folder = Path(where) if tls is None else tls
    if tls is None and not folder.is_dir():
        raise LaunchError(
            f"a worker must have the pool's certificate but {where!r} is no folder; give that folder with "
            "--join, or the address with --join and the folder with --tls"
        )
    address = pool_address(where) if tls is not None else ""

    def find() -> str:
        return address or pool_address((folder / ADDRESS).read_text(encoding="utf-8").strip())

    return be_member(Membership(find=find, tls=folder, name=name, devices=devices, patience_s=patience_s, say=say))


def _not_installed(error: ImportError) -> LaunchError:
    return LaunchError(
        f"a pool needs Dask but {error.name} is not installed here; run `pip install -e '.[dask]'` in "
        "autotune's folder, in the driver's and every worker's environment"
    )
