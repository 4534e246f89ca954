"""Who may talk to a pool: real listeners and real strangers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from distributed.comm import connect
from distributed.security import Security

from autotune.cluster.certificates import CERTIFICATE, KEY, make_certificates, security_of, tls_folder
from autotune.cluster.dask_engine import DaskEngine
from autotune.model import LaunchError
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT
from tests.cluster.pools import Workers, do, joined, open_engine

pytestmark = pytest.mark.cluster


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return make_certificates(tls_folder(tmp_path / "run"))


@pytest.fixture
def engine(tls: Path) -> Iterator[DaskEngine]:
    opened = open_engine(tls)
    yield opened
    opened.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.end()


def listeners(process: psutil.Process) -> set[tuple[str, int]]:
    return {(c.laddr[0], c.laddr[1]) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}


def speaks_without(context: ssl.SSLContext | None, host: str, port: int) -> bytes:
    """What a listener says to a stranger: with TLS but without a certificate of the pool, or in plain text."""
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(socket.create_connection((host, port), timeout=5))
            if context:
                stream = stack.enter_context(context.wrap_socket(stream))
            stream.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return stream.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_the_key_is_the_owner_s_alone_and_made_once(tmp_path: Path) -> None:
    old = os.umask(0)  # the most careless of users
    try:
        folder = make_certificates(tls_folder(tmp_path / "runs" / "x"))
    finally:
        os.umask(old)
    assert folder == tmp_path / "runs" / "x.tls"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    before = (folder / KEY).read_bytes()
    make_certificates(folder)
    assert (folder / KEY).read_bytes() == before
    until = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()).not_valid_after_utc
    assert until > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3600)


def test_half_a_pair_is_not_made_whole_behind_the_back_of_those_who_have_the_other(tls: Path) -> None:
    (tls / KEY).unlink()
    with pytest.raises(LaunchError, match=f"holds only {CERTIFICATE}"):
        make_certificates(tls)
    with pytest.raises(LaunchError, match="copy them from the driver's machine"):
        security_of(tls)


def test_a_certificate_that_has_ended_is_refused_with_its_day(tls: Path) -> None:
    key = serialization.load_pem_private_key((tls / KEY).read_bytes(), None)
    old = x509.load_pem_x509_certificate((tls / CERTIFICATE).read_bytes())
    ended = (
        x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number)
        .not_valid_before(datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2002, 2, 3, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
    )
    (tls / CERTIFICATE).write_bytes(ended.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(LaunchError, match="2002-02-03"):
        security_of(tls)


@pytest.mark.parametrize("kind", ["autotune worker", "dask worker"])
def test_nothing_of_a_pool_answers_a_stranger(engine: DaskEngine, workers: Workers, tls: Path, kind: str) -> None:
    before = listeners(psutil.Process())
    plainly = kind == "dask worker"
    process = workers.join_plainly(engine.address, tls, "--no-nanny") if plainly else workers.join(engine.address, tls)
    joined(engine)
    host, _, port = engine.address.removeprefix("tls://").partition(":")
    ours, theirs = listeners(psutil.Process()), listeners(psutil.Process(process.pid))
    assert (host, int(port)) in ours
    assert len({port for _, port in theirs}) == 1  # the worker itself; no page of Dask's, no dashboard
    if not plainly:
        assert {found for found, _ in theirs} == {"127.0.0.1"}  # only where it reaches the driver from
    assert ours == before
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    for address in ours | theirs:
        assert speaks_without(None, *address) == b""
        assert speaks_without(anybody, *address) == b""
    own = ssl.create_default_context(cafile=str(tls / CERTIFICATE))
    own.check_hostname = False
    own.load_cert_chain(tls / CERTIFICATE, tls / KEY)
    assert speaks_without(own, host, int(port)) != b""  # the question itself can be answered


@pytest.mark.parametrize("stranger", ["another", "none", "plain"])
def test_a_client_without_the_certificate_is_refused(
    engine: DaskEngine, tls: Path, tmp_path: Path, stranger: str
) -> None:
    address, security = engine.address, Security()
    if stranger == "another":
        security = security_of(make_certificates(tmp_path / "another"))
        setattr(security, "tls_ca_file", str(tls / CERTIFICATE))  # noqa: B010  # it trusts the pool; the pool must not trust it
    elif stranger == "none":
        security = Security(tls_ca_file=str(tls / CERTIFICATE), require_encryption=True)
    else:
        address = address.replace("tls://", "tcp://")

    async def ask() -> object:
        comm = await connect(address, timeout=3, **security.get_connection_args("client"))
        await comm.write({"op": "identity"})
        return await comm.read()

    with pytest.raises((OSError, TypeError, ValueError)):
        asyncio.run(asyncio.wait_for(ask(), 10))

    async def ask_rightly() -> object:
        comm = await connect(engine.address, timeout=3, **security_of(tls).get_connection_args("client"))
        await comm.write({"op": "identity"})
        found = await comm.read()
        await comm.close()
        return found

    assert asyncio.run(ask_rightly())["type"] == "_TlsScheduler"  # type: ignore[index]


def test_a_worker_with_another_certificate_is_refused_and_told_so(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other.tls")
    process = workers.join(engine.address, other, "--patience", "30s")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "must have the certificate in" in said
    assert "Traceback" not in said
    workers.join(engine.address, tls)  # and the pool is none the worse
    [lane] = joined(engine)
    assert do(engine, lane, 1)[-1].message["value"] == 1


def test_a_second_worker_of_a_name_waits_and_says_why(engine: DaskEngine, workers: Workers, tls: Path) -> None:
    one = workers.join(engine.address, tls)
    joined(engine)
    two = workers.join(engine.address, tls)
    assert two.stderr is not None
    assert "give this one another --name" in two.stderr.readline()
    one.terminate()
    assert joined_again(engine)
    wait_for(lambda: one.poll() is not None, "the first has left")


def joined_again(engine: DaskEngine) -> bool:
    return bool(joined(engine))


def test_a_driver_without_a_pool_imports_nothing_of_dask() -> None:
    code = "import sys, autotune.cluster, autotune.cli.app; print([m for m in sys.modules if 'distributed' in m])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []
