"""The devices of a process, which must be those that the study asks for: JAX goes on without a GPU, or says nothing."""

from __future__ import annotations

import logging
import os
from typing import Any


class NoDeviceError(RuntimeError):
    """JAX does not find the kind of device that the study asks for."""


class _Heard(logging.Handler):
    """What JAX logs while it looks for devices: that a plugin fails is said nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the exception that was logged, or the first line of the text."""
        error = record.exc_info[1] if record.exc_info else None
        text = f"{type(error).__name__}: {error}" if error is not None else record.getMessage()
        self.lines += text.splitlines()[:1]


def find_devices(jax: Any, platform: str) -> list[Any]:
    """All devices of JAX's default platform.

    Args:
        jax: The module.
        platform: ``cpu`` or ``cuda``, as the study has it.

    Raises:
        NoDeviceError: If a GPU is asked for and JAX finds none.
    """
    logger, heard = logging.getLogger("jax"), _Heard()
    logger.addHandler(heard)
    try:
        devices = list(jax.devices())
    except Exception as error:  # with its plugin missing, JAX fails an assertion without a word
        if platform != "cuda":
            raise
        said = str(error).splitlines()[0] if str(error) else ""
        raise NoDeviceError(_words([f"{type(error).__name__}: {said}".rstrip(": "), *heard.lines])) from error
    finally:
        logger.removeHandler(heard)
    if platform == "cuda" and devices[0].platform == "cpu":
        raise NoDeviceError(_words(["it would run on the CPU", *heard.lines]))
    return devices


def leaves_out_cpu(environment: Any = os.environ) -> str | None:
    """A warning where JAX is told to use GPUs alone; None where it is not."""
    named = [p.strip() for p in environment.get("JAX_PLATFORMS", "").split(",") if p.strip()]
    if not named or "cpu" in named:
        return None
    return (
        f"JAX_PLATFORMS={','.join(named)} leaves out the CPU, which host callbacks (jax.debug.print, pure_callback, "
        f"io_callback) need: write JAX_PLATFORMS={','.join(named)},cpu"
    )


def _words(said: list[str]) -> str:
    return f"JAX finds no GPU though the study asks for one: {'; '.join(dict.fromkeys(said))}"[:1500]
