"""Gathers the wheels that autotune needs on a machine without a network that has its own jax.

    wheelhouse.py --platform manylinux_2_28_x86_64 --python 3.12 --into FOLDER [--has THERE.txt]

pip resolves the project's dependencies for that machine; what jax, jaxlib, flax and optax need
themselves is there already and is left out, and so is what THERE.txt names (the output of
``pip freeze`` there, or names alone): its versions are those that the rest must fit. Needs a pip of
25.1 or newer and nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
STACK = ("jax", "jaxlib", "flax", "optax")
EXTRAS = ("gpu",)
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def main() -> int:
    """Gathers; the exit status is pip's where it fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--platform", required=True, help="such as manylinux_2_28_x86_64: glibc 2.28 or newer there"
    )
    parser.add_argument("--python", required=True, help="version of Python there, such as 3.12")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument(
        "--has", type=Path, help="what is installed there: `pip freeze`, or one name a line"
    )
    args = parser.parse_args()
    there = read_there(args.has) if args.has else {}
    target = [*tags_of(args.platform), *python_of(args.python)]
    try:
        found = resolve(target, there)
        wanted = beside(found, marker_environment(args.python, args.platform), set(there))
        gather(wanted, found, target, args.into)
    except subprocess.CalledProcessError as error:
        print(
            f"wheelhouse: pip must find wheels for all that is needed but failed:\n{error.stderr}",
            file=sys.stderr,
        )
        return 1
    wheels = sorted(args.into.glob("*.whl"))
    size = sum(w.stat().st_size for w in wheels) / 1e6
    print(
        f"{len(wheels)} wheels, {size:.1f} MB, in {args.into}: "
        f"{', '.join(w.name.split('-')[0] for w in wheels)}"
    )
    return 0


def tags_of(platform: str) -> list[str]:
    """Options of pip for a platform and all older ones: pip itself takes the name literally.

    Raises:
        SystemExit: If it is no platform of Linux wheels.
    """
    named = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if named is None:
        raise SystemExit(
            "--platform must be manylinux_2_NN_ARCH, as manylinux_2_28_x86_64, but got "
            f"{platform!r}"
        )
    minor, machine = int(named[1]), named[2]
    names = [n for m in range(minor, 4, -1) for n in (f"manylinux_2_{m}", LEGACY.get(m)) if n]
    return [word for name in names for word in ("--platform", f"{name}_{machine}")]


def python_of(version: str) -> list[str]:
    """Options of pip for a version of CPython.

    Raises:
        SystemExit: If it is none.
    """
    if not re.fullmatch(r"3\.\d+", version):
        raise SystemExit(f"--python must be a version such as 3.12 but got {version!r}")
    return ["--python-version", version, "--implementation", "cp"]


def marker_environment(version: str, platform: str) -> dict[str, str]:
    """What markers of requirements are held against there."""
    return {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": platform.split("_", 3)[3],
    }


def read_there(path: Path) -> dict[str, str]:
    """The machine's packages with their exact versions; "" where only the name is known."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if named := re.match(r"([A-Za-z0-9][\w.-]*)\s*(?:==\s*([^\s;]+))?", line):
            found[canonicalize_name(named[1])] = named[2] or ""
    return found


def requirements() -> list[str]:
    """The project's dependencies, those for GPUs included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [
        *project["dependencies"],
        *(r for e in EXTRAS for r in project["optional-dependencies"][e]),
    ]


def resolve(target: list[str], there: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """What pip would install there, by name: metadata of each."""
    with tempfile.TemporaryDirectory() as folder:
        report, fixed = Path(folder, "report.json"), Path(folder, "there.txt")
        fixed.write_text("".join(f"{n}=={v}\n" for n, v in there.items() if v), encoding="utf-8")
        pip(
            "install",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
            "--target",
            folder,
            "--constraint",
            str(fixed),
            *target,
            *requirements(),
        )
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {canonicalize_name(i["metadata"]["name"]): i["metadata"] for i in installs}


def beside(
    found: Mapping[str, dict[str, object]], markers: dict[str, str], there: set[str]
) -> list[str]:
    """What is not there yet: not the jax stack, nothing that it needs, nothing that was named."""
    own: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), "") for name in STACK]
    while waiting:
        package = waiting.pop()
        if package not in own:
            own.add(package)
            waiting += needs(found.get(package[0], {}), {**markers, "extra": package[1]})
    return sorted(set(found) - {name for name, _ in own} - there)


def needs(metadata: Mapping[str, object], markers: dict[str, str]) -> list[tuple[str, str]]:
    """What a package needs under these markers, with no extra and with each of its extras."""
    listed = metadata.get("requires_dist", ())
    assert isinstance(listed, Iterable)
    found = [r for r in map(Requirement, listed) if r.marker is None or r.marker.evaluate(markers)]
    return [(canonicalize_name(r.name), extra) for r in found for extra in ("", *r.extras)]


def gather(
    names: list[str], found: Mapping[str, dict[str, object]], target: list[str], into: Path
) -> None:
    """Puts the wheels, and one of the project itself, into a folder that holds nothing else."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    pip(
        "download",
        "--no-deps",
        "--dest",
        str(into),
        *target,
        *(f"{n}=={found[n]['version']}" for n in names),
    )
    with tempfile.TemporaryDirectory() as folder:  # a build leaves folders beside what it builds
        for name in ("autotune", "workloads", "studies"):
            shutil.copytree(
                ROOT / name,
                Path(folder, name),
                ignore=shutil.ignore_patterns("__pycache__", "recorded"),
            )
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        pip("wheel", "--no-deps", "--wheel-dir", str(into), folder, only_binary=False)


def pip(command: str, *arguments: str, only_binary: bool = True) -> None:
    """Runs pip without a word.

    Raises:
        subprocess.CalledProcessError: With what it said, if it fails.
    """
    only = ["--only-binary", ":all:"] if only_binary else []
    words = [
        sys.executable,
        "-m",
        "pip",
        command,
        "--quiet",
        "--disable-pip-version-check",
        *only,
        *arguments,
    ]
    subprocess.run(words, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
