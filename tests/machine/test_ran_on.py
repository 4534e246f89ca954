"""What a process that is started here would run on, asked of NVIDIA's own libraries."""

from __future__ import annotations

import os

import pytest

from autotune.child import installed_versions
from autotune.machine import would_run_on


@pytest.mark.aot
def test_real_libraries_of_the_wheels_tell_their_versions() -> None:
    """Those that JAX's plugin would load here, with no GPU: what they say is what was installed."""
    wheels = {"cublas": "nvidia-cublas-cu12", "cudnn": "nvidia-cudnn-cu12"}
    installed = installed_versions(wheels.values())
    if len(installed) < len(wheels) or not installed_versions(["jax-cuda12-plugin"]):
        pytest.skip("the wheels of CUDA 12 must be installed")
    told = would_run_on(dict(os.environ)).versions
    for name, wheel in wheels.items():
        assert installed[wheel].startswith(f"{told[name]}.")
