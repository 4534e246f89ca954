"""Fake CUDA libraries: files of their names that report the versions given to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_cuda.c")
NAMES = ("libcublas.so.12", "libcudnn.so.9", "libnccl.so.2")


def make_cuda(
    folder: Path, *, cublas: str = "12.9.1", cudnn: str = "9.10.2", nccl: int = 22703
) -> Path:
    """Makes them in a folder, for LD_LIBRARY_PATH; needs a C compiler.

    Args:
        folder: Where.
        cublas: Its version, in three parts.
        cudnn: Likewise.
        nccl: Its version as NCCL has it in one number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {"CUBLAS": cublas.replace(".", ","), "CUDNN": cudnn.replace(".", ","), "NCCL": nccl}
    defines = [f"-D{name}={value}" for name, value in told.items()]
    one = folder / NAMES[0]
    subprocess.run(
        ["cc", "-shared", "-fPIC", *defines, "-o", str(one), str(SOURCE)],
        check=True,
        capture_output=True,
    )
    for name in NAMES[1:]:
        (folder / name).write_bytes(one.read_bytes())
    return folder
