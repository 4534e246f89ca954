"""The certificate of a pool: who has its key may give work and get work, everybody else is refused.

One self-signed pair for all sides, as ``distributed.security.Security.temporary`` makes it, but in files: a pool is
joined from other machines. Whoever holds the key can run programs on every machine of the pool, the driver's included,
so it is a secret like a key of ssh. Names in certificates are not looked at, for pods and nodes have none that last.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.model import LaunchError

if TYPE_CHECKING:
    from distributed.security import Security

CERTIFICATE, KEY = "cert.pem", "key.pem"
ADDRESS = "address"
"""Beside them: where the last driver listened, for workers that see the same disk."""

VALID_DAYS = 3650


def tls_folder(run_dir: Path) -> Path:
    """Where the certificate of a study's pool lies unless told: beside the run directory, which may be shown around."""
    return run_dir.with_name(f"{run_dir.name}.tls")


def make_certificates(folder: Path) -> Path:
    """Makes a pool's key and certificate, unless they are there; gives the folder.

    Raises:
        LaunchError: If the folder cannot be written, holds only one of the two, or `autotune[dask]` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise LaunchError(
            "a pool's certificate needs the package cryptography but it is not installed here; install "
            "it by `pip install -e '.[dask]'` in autotune's folder"
        ) from error

    there = [name for name in (CERTIFICATE, KEY) if (folder / name).exists()]
    if len(there) == 2:
        return folder
    if there:
        raise LaunchError(
            f"{folder} must hold {CERTIFICATE} and {KEY}, or neither, but holds only {there[0]}; remove the folder, "
            "then all workers join with the new certificate"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "autotune-pool")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks of a cluster differ
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        _write(folder / KEY, secret)
        _write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise LaunchError(
            f"{folder} must be writable, for the pool's certificate, but: {error.strerror}; name another folder"
        ) from error
    return folder


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)


def security_of(folder: Path) -> Security:
    """What Dask needs to speak TLS, and only TLS, with a pool.

    Raises:
        LaunchError: If the folder has no such pair, or it is no longer valid.
    """
    from cryptography import x509
    from distributed.security import Security

    certificate, key = folder / CERTIFICATE, folder / KEY
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        key.read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no certificate"
        raise LaunchError(
            f"{folder} must hold the pool's {CERTIFICATE} and {KEY} but: {why}; copy them from the driver's machine "
            "(RUN_DIR.tls there), and name the folder"
        ) from error
    until = found.not_valid_after_utc
    if until < datetime.datetime.now(datetime.UTC):
        raise LaunchError(
            f"the certificate in {folder} must be valid but ended at {until:%Y-%m-%d}; remove the folder and submit "
            "again, then copy it to all workers"
        )
    pair = {
        f"tls_{role}_{part}": str(path)
        for role in ("client", "scheduler", "worker")
        for part, path in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=str(certificate), **pair)
