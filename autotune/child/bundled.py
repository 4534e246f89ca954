"""Where the reference workloads lie: in a clone beside the package, in a wheel inside it (`setup.py`)."""

from __future__ import annotations

from pathlib import Path


def workloads_root() -> Path:
    """The folder that holds the package ``workloads``; a child that imports it puts this folder on its path."""
    package = Path(__file__).resolve().parents[1]
    bundled = package / "bundled"
    return bundled if bundled.is_dir() else package.parent
