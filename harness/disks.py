"""Disks that lose power and disks that fail, as file systems in user space (FUSE).

    # MOUNT/disk: IMAGE on a disk with a volatile cache.
    python -m harness.disks power MOUNT IMAGE
    python -m harness.disks fail MOUNT FOLDER     # FOLDER, which fails as MOUNT/.faults says

Each runs until it is unmounted. `PowerDisk` and `FailingFolder` start them; `missing()` says what
this machine lacks.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from harness.sandbox import wait_for

ROOT = Path(__file__).parents[1]
SECTOR = 512
"""What a disk writes whole or not at all, in bytes."""


def missing(*, loop: bool = False) -> str:
    """What this machine lacks for such a disk, in words; empty if nothing.

    Args:
        loop: Whether a file system of the kernel shall lie on it.
    """
    programs = ["fusermount3", *(("mkfs.ext4", "losetup", "mount", "umount") if loop else ())]
    lacking = [p for p in programs if shutil.which(p) is None]
    if importlib.util.find_spec("mfusepy") is None:
        lacking.append("the Python package mfusepy")
    lacking += [
        d
        for d in ("/dev/fuse", *(("/dev/loop-control",) if loop else ()))
        if not os.access(d, os.W_OK)
    ]
    if loop and os.getuid() != 0:
        lacking.append("root's rights")
    return "" if not lacking else f"this needs {', '.join(lacking)}"


class _Served:
    """A file system in user space that is served by a process of its own."""

    kind = ""

    def __init__(self, mount: Path, source: Path) -> None:
        self.mount = mount
        self._source = source
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Any:
        self.mount.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "harness.disks",
            self.kind,
            str(self.mount),
            str(self._source),
        ]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self._server = subprocess.Popen(command, env=env, cwd="/", stdin=subprocess.DEVNULL)
        server = self._server
        wait_for(
            lambda: os.path.ismount(self.mount) or server.poll() is not None,
            "the file system is mounted",
        )
        if server.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} ended with status {server.returncode}")
        return self

    def __exit__(self, *_: object) -> None:
        """Unmounts."""
        subprocess.run(
            ["fusermount3", "-u", "-z", str(self.mount)], check=False, capture_output=True
        )
        if self._server is not None:
            try:
                self._server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


class PowerDisk(_Served):
    """A disk whose cache is lost with the power; its surface is the file `image`.

    A write lies in the cache until the next flush. A cut keeps what was flushed, and of what was
    not any part: none, all, or each sector by a toss of a coin.
    """

    kind = "power"

    @property
    def image(self) -> Path:
        """The disk as a file, to be given to `losetup`."""
        return self.mount / "disk"

    def cut(self, seed: int, target: Path) -> None:
        """Writes the disk as of a power cut at this moment into a file; the disk runs on."""
        (self.mount / "cut").write_text(f"{seed} {target}")


class FailingFolder(_Served):
    """A folder on a disk that can fail."""

    kind = "fail"

    def fail(self, *operations: str) -> None:
        """Lets some calls fail with EIO: `read`, `write`, `fsync`, `create`, `mkdir`, `rename`, ...

        ``write:records`` is a write into files whose name begins with that; none: all is well
        again.
        """
        (self.mount / CONTROL[1:]).write_text(" ".join(operations) or " ")


# ---------------------------------------------------------------------- in the process that serves


Method = TypeVar("Method", bound=Callable[..., Any])
CONTROL = "/.faults"


class _Power:
    """One file `disk` of fixed size, and `cut`, which is only written."""

    use_ns = True

    def __init__(self, image: bytes) -> None:
        self._seen = bytearray(image)
        self._safe = bytearray(image)
        self._cache: list[tuple[int, bytes]] = []

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        sizes = {"/disk": len(self._seen), "/cut": 0}
        if path == "/":
            return {"st_mode": 0o40700, "st_nlink": 2}
        if path not in sizes:
            raise FileNotFoundError(errno.ENOENT, path)
        return {"st_mode": 0o100600, "st_nlink": 1, "st_size": sizes[path]}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", "disk", "cut"]

    def open(self, path: str, flags: int) -> int:
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._seen[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == "/cut":
            seed, _, target = data.decode().partition(" ")
            Path(target).write_bytes(self._after_cut(random.Random(seed)))
        else:
            self._seen[offset : offset + len(data)] = data
            self._cache.append((offset, bytes(data)))
        return len(data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        for offset, data in self._cache:
            self._safe[offset : offset + len(data)] = data
        self._cache.clear()
        return 0

    def _after_cut(self, rng: random.Random) -> bytes:
        kept, share = bytearray(self._safe), rng.choice([0.0, 0.5, 1.0])
        for offset, data in self._cache:
            for start in range(0, len(data), SECTOR):
                if rng.random() < share:
                    piece = data[start : start + SECTOR]
                    kept[offset + start : offset + start + len(piece)] = piece
        return bytes(kept)


def _may_fail(method: Method) -> Method:
    """An operation that fails if it was told to."""

    @functools.wraps(method)
    def tried(self: _Fail, path: str, *more: Any) -> Any:
        name = path.rpartition("/")[2]
        for fault in self.faults if path != CONTROL else ():
            operation, _, start = fault.partition(":")
            if operation == method.__name__ and name.startswith(start):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return method(self, path, *more)

    return cast(Method, tried)


class _Fail:
    """Hands everything on to a folder, unless it is to fail."""

    use_ns = True

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.faults: list[str] = []

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == CONTROL:
            return {"st_mode": 0o100600, "st_nlink": 1, "st_size": 0}
        found = os.lstat(self._root + path)
        times = {f"st_{n}": getattr(found, f"st_{n}_ns") for n in ("atime", "mtime", "ctime")}
        return {
            f"st_{n}": getattr(found, f"st_{n}") for n in ("mode", "nlink", "size", "uid", "gid")
        } | times

    @_may_fail
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(p.name for p in Path(self._root + path).iterdir())]

    def readlink(self, path: str) -> str:
        return str(Path(self._root + path).readlink())

    def open(self, path: str, flags: int) -> int:
        # The kernel gives the place where to append, and has seen to links.
        return (
            0
            if path == CONTROL
            else os.open(self._root + path, flags & ~(os.O_APPEND | os.O_NOFOLLOW))
        )

    @_may_fail
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._root + path, os.O_RDWR | os.O_CREAT, mode)

    @_may_fail
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    @_may_fail
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == CONTROL:
            self.faults = data.decode().split()
            return len(data)
        return os.pwrite(fh, data, offset)

    @_may_fail
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        if path != CONTROL:
            os.truncate(self._root + path, length)
        return 0

    @_may_fail
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    @_may_fail
    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        if path != CONTROL:
            os.close(fh)
        return 0

    @_may_fail
    def mkdir(self, path: str, mode: int) -> int:
        Path(self._root + path).mkdir(mode)
        return 0

    @_may_fail
    def unlink(self, path: str) -> int:
        Path(self._root + path).unlink()
        return 0

    def rmdir(self, path: str) -> int:
        Path(self._root + path).rmdir()
        return 0

    @_may_fail
    def rename(self, old: str, new: str) -> int:
        Path(self._root + old).rename(self._root + new)
        return 0


def _serve(kind: str, mount: str, source: str) -> None:
    import mfusepy

    served = _Power(Path(source).read_bytes()) if kind == PowerDisk.kind else _Fail(Path(source))
    mfusepy.FUSE(
        served, mount, foreground=True, nothreads=True, direct_io=True, fsname=f"autotune-{kind}"
    )


if __name__ == "__main__":
    _serve(*sys.argv[1:])
