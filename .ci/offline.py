"""Installs a folder of wheels without a network; leaves what is installed there as it is.

    offline.py WHEELHOUSE [--target FOLDER]

A package that is there stays as it is, whatever version the folder has: who measures with it wants
it so. What then does not fit is said, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

PROJECT = canonicalize_name("xla-autotune")


def main() -> int:
    """Installs what is missing, then checks that all needs are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheelhouse", type=Path)
    parser.add_argument(
        "--target", type=Path, help="a folder for PYTHONPATH instead of the environment"
    )
    args = parser.parse_args()
    wheels = sorted(args.wheelhouse.glob("*.whl"))
    if not wheels:
        print(
            f"offline: {args.wheelhouse} must hold wheels but has none; on a machine with a "
            "network run "
            "`make wheelhouse PLATFORM=manylinux_2_28_x86_64 PYTHON=3.12`, then bring the folder "
            "here",
            file=sys.stderr,
        )
        return 2
    if args.target is not None:
        sys.path.insert(0, str(args.target))
    new = [w for w in wheels if is_wanted(w)]
    install(new, args)
    print(
        f"installed {len(new)} of {len(wheels)} wheels; the others are there in the machine's "
        "own version"
    )
    importlib.invalidate_caches()
    problems = unmet({name_of(w) for w in new})
    for problem in problems:
        print(
            f"offline: {problem}; gather again with HAS=THERE.txt, the output of `pip freeze` here",
            file=sys.stderr,
        )
    return 1 if problems else 0


def is_wanted(wheel: Path) -> bool:
    """Whether a wheel is of the project itself, or of a package that is not here."""
    name = name_of(wheel)
    return name == PROJECT or version_here(name) is None


def name_of(wheel: Path) -> str:
    """The package that a wheel is of."""
    return str(parse_wheel_filename(wheel.name)[0])


def version_here(name: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(wheels: list[Path], args: argparse.Namespace) -> None:
    """Installs exactly these wheels: no index is asked, no need is followed."""
    where = ["--target", str(args.target), "--upgrade"] if args.target is not None else []
    words = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
    ]
    own = {
        **os.environ,
        "PIP_CONFIG_FILE": os.devnull,
    }  # a site's find-links are no business of this
    subprocess.run(
        [*words, "--find-links", str(args.wheelhouse), *where, *map(str, wheels)],
        check=True,
        env=own,
    )


def unmet(names: set[str]) -> list[str]:
    """What these packages lack here, one line each; the machine's own packages do not count."""
    found = []
    for name in sorted(names):
        for need in map(Requirement, importlib.metadata.requires(name) or ()):
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            here, wanted = version_here(need.name), f"{name} needs {need.name}{need.specifier}"
            if here is None:
                found.append(f"{wanted}, which is not here")
            elif not need.specifier.contains(here, prereleases=True):
                found.append(f"{wanted} but {here} is here")
    return found


if __name__ == "__main__":
    sys.exit(main())
