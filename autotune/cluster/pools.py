"""The doors to pools. Dask is imported behind them, when one is opened: no other study needs it to be installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
            "without TLS, and workers join where `autotune run --engine dask` says that it listens"
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
    return DaskEngine(study, tls=tls, listen=pool_address(listen), **options)


def join_pool(
    address: str, *, tls: Path, name: str, devices: int | None, patience_s: float, say: Callable[[str], None]
) -> int:
    """Joins a pool and stays until its study is over; gives the exit status. See `membership.be_member`.

    Raises:
        LaunchError: If Dask is not installed, or the pool has another certificate.
        NodeLostError: If no driver was there for `patience_s` seconds.
    """
    try:
        from autotune.cluster.membership import Membership, be_member
    except ImportError as error:
        raise _not_installed(error) from error
    member = Membership(
        address=pool_address(address), tls=tls, name=name, devices=devices, patience_s=patience_s, say=say
    )
    return be_member(member)


def _not_installed(error: ImportError) -> LaunchError:
    return LaunchError(
        f"a pool needs Dask but {error.name} is not installed here; install `xla-autotune[dask]` in the driver's and "
        "every worker's environment"
    )
