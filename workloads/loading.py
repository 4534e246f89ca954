"""Workloads by name: presets, and what users write themselves."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import jax

from workloads.base import Workload, WorkloadError, close_matches


def load(
    entry: str, options: Mapping[str, Any], devices: Sequence[jax.Device] | None = None
) -> Workload:
    """Builds the workload that an entry names.

    Args:
        entry: A preset (``llama2-7b``), a family (``llama``, with a ``size`` option), or
            ``package.module:function``, which is called as ``function(devices=devices, **options)``
            and may return any object that has ``step``, ``init`` and ``batch``.
        options: Sizes, numerics, mesh; see `workloads.presets.build` for those of the presets.
        devices: Real or compile-only devices; all of this process group when None.

    Raises:
        WorkloadError: If the entry or an option is not known or does not fit, or the object lacks a
            part.
    """
    built = find_builder(entry)(devices=devices, **options)
    return built if isinstance(built, Workload) else _checked(entry, options, built)


def find_builder(entry: str) -> Callable[..., Any]:
    """Imports what an entry names and gives what builds it; nothing is built yet.

    Raises:
        WorkloadError: If the module or its function is not there.
    """
    if ":" not in entry:
        from workloads import (
            presets,
        )  # here, for a workload of the user's needs neither flax nor optax

        return functools.partial(presets.build, entry)
    module_name, _, function_name = entry.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not (module_name + ".").startswith(e.name + "."):
            raise  # the user's module was found; what it imports was not
        raise WorkloadError(
            f"the module of workload `{entry}` must be importable but `{e.name}` was not found; "
            "set PYTHONPATH to the folder that holds it or install it"
        ) from e
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise WorkloadError(
            f"workload `{entry}` must name a function of `{module_name}` but `{function_name}` "
            "is none"
            f"{close_matches(function_name, public)}"
        )
    return function


def _checked(entry: str, options: Mapping[str, Any], built: Any) -> Workload:
    """An object of the user's as a `Workload`, with defaults for the parts that may be missing."""
    for part in ("step", "init", "batch"):
        if not callable(getattr(built, part, None)):
            raise WorkloadError(
                f"workload `{entry}` must give an object with callable `step`, `init` and "
                "`batch` but got a "
                f"{type(built).__name__} without a callable `{part}`; see workloads/example.py"
            )
    known = {f.name: getattr(built, f.name) for f in fields(Workload) if hasattr(built, f.name)}
    return Workload(
        **{"name": entry, "config": {"entry": entry, "options": dict(options)}, **known}
    )
