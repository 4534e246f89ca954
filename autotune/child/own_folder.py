"""Starts a command in a folder of its own: it reads the user's files, its own are thrown away.

Run as ``own_folder KIND FOLDER SCRATCH [KEPT ...] -- COMMAND ...`` between guard and command, which
takes its place; KEPT paths in FOLDER keep their content. Standard library only. Of kind

* ``overlay``: an overlay file system lies over FOLDER for this process and what it starts, by all
  paths; writes go to ``SCRATCH/written``. See mount_namespaces(7), user_namespaces(7) and
  Documentation/filesystems/overlayfs.rst of Linux;
* ``copy``: the command runs in ``SCRATCH/copy``; absolute paths into FOLDER are not caught.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.child.guard import die_with_parent

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
OVERLAY = "overlay"
COPY = "copy"
WRITTEN = "written"
WORK = "work"  # numbered folders in SCRATCH: a layer that is written, the kernel's

_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Calls a function of the C library; OSError if it fails."""
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, flags: int, options: str = "") -> None:
    """Mounts a file system; the kernel ignores kind and options of anything but an overlay."""
    places = (os.fsencode(source), os.fsencode(target), b"overlay")
    _call("mount", *places, ctypes.c_ulong(flags), os.fsencode(options))


def enter_namespace() -> None:
    """Enters a mount namespace of this process, by a user namespace if it must; else OSError."""
    parent = os.getppid()
    user = os.getuid()
    group = os.getgid()
    try:
        _call("unshare", CLONE_NEWNS)
    except OSError:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    die_with_parent(parent)  # other rights undo it
    _mount("none", "/", MS_REC | MS_SLAVE)


def mount_points(folder: str) -> list[str]:
    """Returns the folder and the mount points below it, in order (proc(5), mountinfo)."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    paths = {
        re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4])
        for line in text.splitlines()
    }
    return [folder, *sorted(path for path in paths if path.startswith(f"{folder}/"))]


def _lasting(path: str) -> str:
    """Returns a path that stays valid when something is mounted over it."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"


def overlay(folder: str, scratch: str, exempt: Sequence[str]) -> None:
    """Lays overlays over a folder and its mount points, not `exempt`; OSError if not allowed."""
    enter_namespace()
    # Redirects let old folders be renamed, but in a user namespace Linux before 6.5 then makes no
    # folder in place of one that was removed.
    users = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    mode = "redirect_dir=on" if users == ["0", "0", str(2**32 - 1)] else "userxattr"
    lower = {path: _lasting(path) for path in mount_points(folder)}
    content = {path: _lasting(path) for path in exempt if path.startswith(f"{folder}/")}
    layers = _lasting(scratch)
    for number, (path, below) in enumerate(lower.items()):
        if not Path(below).is_dir():
            _mount(below, path, MS_BIND)
            continue
        for name in (WRITTEN, WORK):
            Path(scratch, f"{name}-{number}").mkdir()
        upper = f"upperdir={layers}/{WRITTEN}-{number},workdir={layers}/{WORK}-{number}"
        _mount("overlay", path, 0, f"lowerdir={below},{upper},{mode}")
    for path, source in content.items():
        Path(path).mkdir(parents=True, exist_ok=True)  # in the overlay
        _mount(source, path, MS_BIND | MS_REC)
    os.chdir(folder)


def copy(folder: str, scratch: str) -> None:
    """Enters a copy of a folder, with shared blocks if possible; OSError if it cannot be copied."""
    target = f"{scratch}/{COPY}"
    command = ["cp", "--archive", "--reflink=auto", "--", folder, target]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode != 0:
        raise OSError(process.stderr.strip())
    os.environ["PWD"] = target
    os.chdir(target)


def main() -> int:
    """Makes the folder and becomes the command; returns the exit status if that fails."""
    dashes = sys.argv.index("--")
    _, kind, folder, scratch, *exempt = sys.argv[:dashes]
    command = sys.argv[dashes + 1 :]
    try:
        if kind == OVERLAY:
            overlay(folder, scratch, exempt)
        else:
            copy(folder, scratch)
    except OSError as error:
        sys.stderr.write(f"cannot give {folder} to this process alone: {error.strerror or error}\n")
        return 127
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
    return 127
