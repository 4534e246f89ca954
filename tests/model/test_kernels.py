"""What an autotuner's results say, in both forms in which XLA leaves them, and what is no such thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.model.kernels import kernel_spread, kernels_of, read_choices

UNTIL_0_10 = """version: 3
results {
  device: "CUDA: 9.0, Cores: 132"
  hlo: "custom-call(bf16[4,4]{1,0}), custom_call_target=\\"__cublas$gemm\\", backend_config={\\"x\\":1}"
  result {
    scratch_bytes: 12
    run_time { nanos: %d }
    gemm { algorithm: %d }
  }
  version: 2
}
results { device: "CUDA" hlo: "fused { dot }" result { run_time { nanos: 7 } triton { block_m: 64 num_warps: 4 } } }
"""
SINCE_0_11 = """entries {
  key { target { device: "d" explicit_version: "v" hlo_fingerprint: "abc" } environment { codegen_version: "1" } }
  value {
    optimal_config { backend: CUBLASLT backend_config { gemm { algorithm: %d } } }
    optimal_backend_version: "%s"
  }
}
"""


def test_both_forms_tell_what_was_chosen_for_which_kernel() -> None:
    first, second = sorted(read_choices(UNTIL_0_10 % (1, 7)).items(), key=lambda item: item[1])
    assert first[1] == "gemm {algorithm: 7}"
    assert "__cublas$gemm" in first[0]
    assert second[1] == "triton {block_m: 64, num_warps: 4}"
    (name, choice) = next(iter(read_choices(SINCE_0_11 % (3, "x")).items()))
    assert name.endswith("abc")
    assert choice == "optimal_config {backend: CUBLASLT, backend_config {gemm {algorithm: 3}}}"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (UNTIL_0_10 % (1, 7), UNTIL_0_10 % (99, 7), True),  # only the time differs, as it always does
        (UNTIL_0_10 % (1, 7), UNTIL_0_10 % (1, 8), False),
        (SINCE_0_11 % (3, "x"), SINCE_0_11 % (3, "y"), True),
        (SINCE_0_11 % (3, "x"), SINCE_0_11 % (4, "x"), False),
    ],
)
def test_what_was_timed_is_no_choice(one: str, other: str, is_same: bool) -> None:
    first, second = read_choices(one), read_choices(other)
    assert (kernels_of(first) == kernels_of(second)) is is_same


@pytest.mark.parametrize(
    "text", ["no results {{", "results {", "}", 'results { hlo: "x" }', "results { result: 1 }", "a"]
)
def test_what_is_torn_or_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="results of an autotuner"):
        read_choices(text)


@given(st.text(max_size=200))
def test_no_text_does_harm(text: str) -> None:
    try:
        read_choices(text)
    except ValueError:
        return


@pytest.mark.parametrize("end", ["", "}" * 100_000])
def test_what_is_nested_without_end_is_refused_and_exhausts_nothing(end: str) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        read_choices("results { result " + "{ a " * 100_000 + end)


def test_the_spread_is_of_processes_and_of_their_times() -> None:
    usual, other = ({"a": x, "b": "1"} for x in ("7", "8"))
    found = [kernels_of(choices) for choices in (usual, usual, other, usual, other)]
    spread = kernel_spread([*found, None], [0.0, 0.001, 0.02, -0.001, 0.03, 9.0])
    assert spread is not None
    assert (spread.processes, spread.others) == (5, 2)
    assert spread.apart == pytest.approx(0.025)
    alike = kernel_spread(found[:2])
    assert alike is not None
    assert (alike.others, alike.apart) == (0, None)
    assert kernel_spread([found[0], None]) is None
