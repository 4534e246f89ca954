"""Runs or describes a workload: ``python -m workloads llama --size small --mesh fsdp=4``."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from workloads.base import Workload, WorkloadError, jit_step
from workloads.flops import peak_flops_per_s
from workloads.loading import load
from workloads.step import bytes_per_device


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line, runs or describes, prints; gives the exit status."""
    args = _parser().parse_args(argv)
    try:
        if args.devices is not None:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", args.devices)
        options = _options(args)
        workload = load(args.workload, options)
        if args.describe:
            _print(describe(workload), as_json=args.json)
        else:
            run(workload, steps=args.steps, warmup=args.warmup, as_json=args.json)
    except WorkloadError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workloads", description="Run or describe a training step."
    )
    parser.add_argument(
        "workload", help="a preset (llama2-7b), a family (llama) or package.module:function"
    )
    parser.add_argument("--size", help="the size within a family (default small)")
    parser.add_argument(
        "--mesh", default="", help="axis=size[,axis=size...], one may be -1: fsdp=4,tensor=2"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any option, value as JSON"
    )
    parser.add_argument(
        "--steps", type=_at_least_one, default=20, help="measured steps (default 20)"
    )
    parser.add_argument(
        "--warmup", type=int, default=2, help="steps that are run first and left out (default 2)"
    )
    parser.add_argument(
        "--devices", type=_at_least_one, metavar="N", help="run on N virtual CPU devices"
    )
    parser.add_argument(
        "--describe",
        action="store_true",
        help="print shapes, bytes per device and FLOPs; run nothing",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    return parser


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 but got {value}")
    return value


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {} if args.size is None else {"size": args.size}
    for pair in args.set:
        name, equals, text = pair.partition("=")
        if not equals:
            raise WorkloadError(f"--set must be NAME=VALUE but got {pair!r}")
        try:
            options[name] = json.loads(text)
        except json.JSONDecodeError:
            options[name] = text
    sizes = {}
    for pair in filter(None, args.mesh.split(",")):
        axis, _, text = pair.partition("=")
        try:
            sizes[axis.strip()] = int(text)
        except ValueError as e:
            raise WorkloadError(f"--mesh must be axis=size[,axis=size...] but got {pair!r}") from e
    return {**options, "mesh": sizes} if sizes else options


def describe(workload: Workload) -> dict[str, Any]:
    """What is known of a workload without running it; sizes in bytes of one device."""
    found: dict[str, Any] = {
        "name": workload.name,
        "param_count": workload.param_count,
        "tokens_per_step": workload.tokens_per_step,
        "flops_per_step": workload.flops_per_step,
        **{f"layer_{name}_bytes": size for name, size in workload.layer_bytes.items()},
    }
    if workload.mesh is not None:
        found["mesh"] = {axis: size for axis, size in workload.mesh.shape.items() if size > 1}
        found["devices"] = workload.mesh.size
    for name, tree in (("state", workload.abstract_state), ("batch", workload.abstract_batch)):
        if tree is None:
            continue
        found[f"{name}_bytes_per_device"] = bytes_per_device(tree)
        shown = tree["params"] if isinstance(tree, Mapping) and "params" in tree else tree
        found[f"{name}_shapes"] = {
            _path(
                path
            ): f"{leaf.dtype}{list(leaf.shape)} {getattr(leaf.sharding, 'spec', '')}".rstrip()
            for path, leaf in jax.tree_util.tree_leaves_with_path(shown)
        }
    return {**found, "config": dict(workload.config)}


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")


def run(workload: Workload, *, steps: int, warmup: int, as_json: bool) -> None:
    """Runs the workload and prints each step, then what they amount to."""
    state, step = workload.init(0), jit_step(workload)
    times_s = []
    for index in range(warmup + steps):
        batch = jax.block_until_ready(workload.batch(index))
        started = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, batch))
        seconds = time.perf_counter() - started
        if index >= warmup:
            times_s.append(seconds)
        numbers = {name: float(value) for name, value in metrics.items()}
        if as_json:
            print(
                json.dumps(
                    {"step": index, "is_warmup": index < warmup, "step_time_s": seconds, **numbers}
                ),
                flush=True,
            )
        else:
            values = "  ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            note = "  (warm-up)" if index < warmup else ""
            print(f"step {index:4d}  {seconds * 1e3:10.2f} ms  {values}{note}", flush=True)
    _print(rates(workload, statistics.median(times_s)), as_json=as_json)


def rates(workload: Workload, step_time_s: float) -> dict[str, Any]:
    """Tokens per second, model FLOP/s and MFU at a step time; what cannot be known is left out."""
    found: dict[str, Any] = {"name": workload.name, "median_step_time_s": step_time_s}
    if workload.tokens_per_step is not None:
        found["tokens_per_s"] = workload.tokens_per_step / step_time_s
    if workload.flops_per_step is not None and workload.mesh is not None:
        device = workload.mesh.devices.flat[0]
        found["model_flops_per_s_per_device"] = (
            workload.flops_per_step / step_time_s / workload.mesh.size
        )
        peak = peak_flops_per_s(device.device_kind, workload.config.get("dtype", "bfloat16"))
        if peak is not None:
            found["mfu"] = found["model_flops_per_s_per_device"] / peak
    return found


def _print(record: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(record), flush=True)
        return
    for name, value in record.items():
        if isinstance(value, Mapping):
            print(f"{name}:")
            for key, item in value.items():
                print(f"  {key:40s} {item}")
        else:
            print(f"{name:32s} {value:.6g}" if isinstance(value, float) else f"{name:32s} {value}")


if __name__ == "__main__":
    sys.exit(main())
