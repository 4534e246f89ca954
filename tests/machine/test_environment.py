from __future__ import annotations

from autotune.machine import environment
from autotune.model.flags import FlagSet
from tests.tables import toml_beside

CALLER = toml_beside(__file__)["caller"]


def test_worker_gets_exactly_the_settings_and_the_callers_site() -> None:
    settings = FlagSet([("xla_c", True), ("NCCL_ALGO", "Ring"), ("jax_optimization_level", "O1")])
    env = environment.child_environment(CALLER, settings, platform_name="cuda")
    assert env["XLA_FLAGS"] == "--xla_c=true"
    assert env["JAX_OPTIMIZATION_LEVEL"] == "O1"
    assert "NCCL_PROTO" not in env
    assert "OMP_NUM_THREADS" not in env
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in env
    assert (env["NCCL_SOCKET_IFNAME"], env["CUDA_VISIBLE_DEVICES"], env["HF_TOKEN"]) == ("eth0", "1", "hf_secret")
    assert env["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:1"
    assert env["JAX_PLATFORMS"] == "cuda,cpu"  # without the CPU a program's host callbacks fail
    assert env["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    env = environment.child_environment(CALLER, FlagSet(), platform_name="cpu", virtual_devices=8)
    assert "XLA_FLAGS" not in env
    assert env["JAX_NUM_CPU_DEVICES"] == "8"


def test_what_steers_the_caller_is_found() -> None:
    steering = {n: CALLER[n] for n in ("XLA_PYTHON_CLIENT_MEM_FRACTION", "NCCL_PROTO", "OMP_NUM_THREADS")}
    assert environment.steering_settings(CALLER) == FlagSet({"xla_gpu_a": "1", "xla_b": "x y", **steering})


def test_merge_keeps_what_the_user_has_and_tells_where_the_winner_takes_its_place() -> None:
    winner, baseline = FlagSet([("xla_c", 2), ("NCCL_PROTO", "LL")]), FlagSet({"NCCL_PROTO": "LL"})
    env, lines = environment.merge_for_exec(CALLER, winner, baseline)
    assert env["XLA_FLAGS"] == '--xla_b="x y" --xla_c=2 --xla_gpu_a=1'
    assert env["HF_TOKEN"] == "hf_secret"
    assert any("xla_c=2 (winner)" in line for line in lines)
    assert any("NCCL_PROTO=LL (baseline" in line for line in lines)
    assert any("xla_gpu_a=1 (your XLA_FLAGS, kept)" in line for line in lines)
    winner = FlagSet({"xla_gpu_a": 5})
    env, lines = environment.merge_for_exec(CALLER, winner, FlagSet())
    assert "--xla_gpu_a=5" in env["XLA_FLAGS"]
    assert any(line.startswith("xla_gpu_a=5 (winner, ") and "'1'" in line for line in lines)
