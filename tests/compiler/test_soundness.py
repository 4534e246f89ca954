"""The benchmark of soundness on two of its spaces, cut down: real programs, and no point lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.interacting import GRAPHS, SPACES, brute_force

pytestmark = [pytest.mark.aot, pytest.mark.timeout(600)]

P2P = ("xla_gpu_enable_pipelined_p2p", "xla_gpu_collective_permute_decomposer_threshold")


@pytest.mark.gate
def test_sends_and_receives_of_a_pipeline_are_found_though_no_setting_alone_makes_them() -> None:
    names = (*P2P, "xla_gpu_collective_permute_combine_threshold_bytes")
    whole = SPACES["pipeline"]
    found = brute_force(replace(whole, domains={n: whole.domains[n] for n in names}))
    assert found["distinct_programs"] == 2
    assert {n: set(c) for n, c in found["active_only_with"].items()} == {P2P[0]: {P2P[1]}, P2P[1]: {P2P[0]}}
    assert found["no_ops"] == [names[2]]
    assert found["points_lost"] == []


@pytest.mark.gate
def test_what_a_graph_holds_is_active_though_only_with_cublas_kernels() -> None:
    found = brute_force(replace(SPACES["one GPU"], domains=GRAPHS))
    assert found["active_only_under"] == {"xla_gpu_enable_command_buffer": "with cuBLAS GEMMs"}
    assert found["distinct_programs"] > found["distinct_with_the_compilers_own_choice"]
    assert found["points_lost"] == []
