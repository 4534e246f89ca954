"""What stands in the place of ptxas: it says what ptxas says, runs it once for each kernel, and breaks nothing."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.child.ptxas import stand_in

REAL = """\
#!/bin/sh
echo "$*" >>{calls}
if [ "$1" = --version ]; then echo release 12.9; exit 0; fi
if grep -q broken "$1"; then echo "ptxas fatal: $(cat "$1")" >&2; exit 255; fi
shift 3
echo "spills under $*" >&2
echo "kernel of $(cat {text}) under $*" >{out}
"""


class Cuda:
    """A CUDA whose ptxas writes down its calls, and the folder that stands in for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        root = folder / "cuda of 'ours'"
        (root / "bin").mkdir(parents=True)
        (root / "nvvm" / "libdevice").mkdir(parents=True)
        (root / "bin" / "nvlink").touch()
        real = root / "bin" / "ptxas"
        real.write_text(REAL.format(calls=self.calls, text='"$TEXT"', out='"$OUT"'))
        real.chmod(0o755)
        self.stand_in = folder / "stand in"
        assert stand_in(root, self.stand_in)

    def run(self, text: str, *options: str, name: str = "a", path: str | None = None) -> tuple[int, str, str | None]:
        """Status, what was said, and the kernel that was written."""
        ptx, out = self.folder / f"{name}.ptx", self.folder / f"{name}.cubin"
        ptx.write_text(text)
        out.unlink(missing_ok=True)
        done = subprocess.run(
            [self.stand_in / "bin" / "ptxas", ptx, "-o", out, *options],
            capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"] if path is None else path, "TEXT": str(ptx), "OUT": str(out)},
        )  # fmt: skip
        return done.returncode, done.stderr, out.read_text() if out.exists() else None

    @property
    def count(self) -> int:
        """How often the real one ran for a kernel."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return sum(line != "--version" for line in calls)


@pytest.fixture
def cuda(tmp_path: Path) -> Cuda:
    return Cuda(tmp_path)


def test_a_kernel_is_made_once_and_told_alike(cuda: Cuda) -> None:
    first = cuda.run("add", "-arch=sm_90a", "--warn-on-spills")
    again = cuda.run("add", "-arch=sm_90a", "--warn-on-spills", name="b")
    assert first == again == (0, "spills under -arch=sm_90a --warn-on-spills\n", again[2])
    assert again[2] == "kernel of add under -arch=sm_90a --warn-on-spills\n"
    assert cuda.count == 1


def test_another_text_or_option_is_another_kernel(cuda: Cuda) -> None:
    found = {cuda.run(text, *options)[2] for text in ("add", "add\n", r"a\dd") for options in ((), ("-O0",), ("-O1",))}
    assert len(found) == 6  # the fake's `$(cat)` drops a newline, so two of the texts give one kernel,
    assert cuda.count == 9  # but each was made


def test_what_fails_is_told_and_not_kept(cuda: Cuda) -> None:
    for _ in range(2):
        assert cuda.run("broken") == (255, "ptxas fatal: broken\n", None)
    assert cuda.count == 2
    assert not list((cuda.stand_in / "kept").iterdir())


def test_other_questions_go_to_the_real_one(cuda: Cuda) -> None:
    done = subprocess.run([cuda.stand_in / "bin" / "ptxas", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "release 12.9\n"
    assert (cuda.stand_in / "bin" / "nvlink").exists()
    assert (cuda.stand_in / "nvvm" / "libdevice").is_dir()


def test_a_folder_that_is_gone_and_an_option_that_is_no_name_leave_the_real_one(cuda: Cuda) -> None:
    assert cuda.run("add", "-lib=/x/y")[2] == "kernel of add under -lib=/x/y\n"
    assert cuda.run("add", "-" + "x" * 300)[0] == 0
    (cuda.stand_in / "kept").rmdir()
    for _ in range(2):
        assert cuda.run("add")[0] == 0
    assert cuda.count == 4


def test_a_machine_without_sha256sum_has_the_real_one(cuda: Cuda, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("grep", "cat", "cp", "mv", "rm"):
        (tools / name).symlink_to(f"/bin/{name}")
    for _ in range(2):
        status, _, kernel = cuda.run("add", path=str(tools))
        assert (status, kernel) == (0, "kernel of add under \n")
    assert cuda.count == 2


def test_many_at_once_give_what_one_gives(cuda: Cuda) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: cuda.run(f"add {i % 3}", name=str(i)), range(24)))
    assert [f[2] for f in found] == [f"kernel of add {i % 3} under \n" for i in range(24)]
    kept = [f.name.split(" ", 1)[1].strip() for f in (cuda.stand_in / "kept").iterdir()]
    assert sorted(kept) == ["", "", "", "said", "said", "said"]  # nothing half-written is left


def test_a_cuda_without_ptxas_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    assert not stand_in(tmp_path / "cuda", tmp_path / "kernels")
    assert not (tmp_path / "kernels").exists()


def test_a_folder_in_which_nothing_may_run_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    (tmp_path / "cuda" / "bin" / "ptxas").touch()
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)  # as on a file system that is mounted noexec
    assert not stand_in(tmp_path / "cuda", tmp_path / "kernels")
