"""What is compiled: a workload, for which cluster, with which versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child import workloads_root
from autotune.compiler import plugin
from autotune.compiler.targets import Target, Topology
from autotune.machine import caller_environment

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """What is compiled, and for which GPUs.

    Attributes:
        entry: The workload, as `workloads.load` takes it.
        options: Its options.
        target: The GPU; None compiles for this machine's CPU.
        topology: Machines and GPUs; for the CPU, its virtual devices.
        paths: Folders where the user's own modules are found.
        versions: Installed versions that decide what comes out: part of the cache's key.
        base: The caller's environment.
    """

    entry: str
    options: Mapping[str, Any]
    target: Target | None
    topology: Topology
    paths: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=plugin.compiler_versions)
    base: Mapping[str, str] = field(default_factory=caller_environment)

    @property
    def digest(self) -> str:
        """Names everything but the flag set that decides what comes out, the user's own source included."""
        known = {
            "entry": self.entry,
            "options": self.options,
            "source": _source_digest(self.entry, self.paths),
            "target": self.target.digest if self.target else "cpu",
            "topology": str(self.topology),
            "versions": dict(self.versions),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _source_digest(entry: str, paths: Sequence[str]) -> str:
    """Digest of the source that an entry of the user's names; presets are named by the package's version."""
    module = entry.partition(":")[0]
    digest = hashlib.sha256()
    roots = [Path(p) for p in paths] if ":" in entry else []
    packaged = workloads_root() / "workloads"
    files = [r / (module.replace(".", "/") + ".py") for r in roots] + sorted(packaged.glob("*.py"))
    for path in files:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
