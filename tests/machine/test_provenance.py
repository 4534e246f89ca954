from __future__ import annotations

import json

from autotune.machine import describe_machine, installed_versions, measured_versions


def test_provenance_names_versions_and_machine_but_no_person() -> None:
    facts = describe_machine()
    assert {"jax", "jaxlib", "optuna"} <= set(facts["versions"])
    assert facts["cpus_usable"] >= 1
    assert not {"user", "home", "environment"} & set(facts)


def test_of_the_environment_only_what_is_allow_listed_is_kept() -> None:
    caller = {
        "XLA_FLAGS": "--xla_gpu_a=1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "HF_TOKEN": "hf_secret",
        "AUTOTUNE_STORAGE": "postgresql://me:secret@host/db",
        "HOME": "/home/secret",
    }
    facts = describe_machine(caller)
    assert facts["variables"] == {"NCCL_SOCKET_IFNAME": "eth0", "XLA_FLAGS": "--xla_gpu_a=1"}
    assert "secret" not in json.dumps(facts)


def test_what_is_not_installed_has_no_version() -> None:
    assert installed_versions(["no-such-distribution"]) == {}
    assert "jaxlib" in measured_versions()
