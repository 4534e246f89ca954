from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from autotune.compiler.predict import (
    FIGURES,
    Prediction,
    collective_time,
    kernel_time,
    predict_set,
    predict_step,
    product_time,
)
from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind
from autotune.compiler.targets import Network, Target, Topology, load_target
from autotune.model.flags import FlagSet
from autotune.model.texts import text_lines
from tests.compiler import rules
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

NETWORK = Network(**CASES["network"])
H100 = load_target("h100-sxm")
TARGET = Target(
    title="T",
    sources=(),
    device={"device_memory_size": 1 << 30, "memory_bandwidth": 1e12, "core_count": 7},
    flops_per_s={"bf16": 100e12, "tf32": 50e12, "scalar": 10e12},
    network=NETWORK,
    matrix_share=0.5,
)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches take no time, collectives hold no cores: times are easily told."""
    monkeypatch.setitem(FIGURES, "memory_share", 0.8)
    for name in ("kernel_gap_s", "graph_gap_s", "host_launch_s", "nvlink_cores", "pcie_cores"):
        monkeypatch.setitem(FIGURES, name, 0)


def kernel(name: str, seconds: float) -> Op:
    return Op(kind=OpKind.KERNEL, name=name, bytes=seconds * 0.8e12)


def collective(kind: str, size: int, group: int = 8, nodes: int = 1) -> Collective:
    return Collective(kind=kind, bytes=size, dtype="bf16", group_size=group, node_count=nodes)


def gather(seconds_of_ring: float) -> Op:
    """An all-gather so large that its latency is little: ring of 8 over 100 GB/s."""
    size = int(seconds_of_ring * 100e9 * 8 / 7)
    return Op(kind=OpKind.COLLECTIVE, name="gather", collective=collective("all-gather", size))


def program(*ops: Op) -> CompiledProgram:
    return CompiledProgram(
        fingerprint="f",
        versions={},
        device_count=8,
        memory=None,
        schedule=ops,
        flops_per_step=2e12,
        tokens_per_step=7,
    )


def run(*ops: Op) -> float:
    return predict_step(program(*ops), TARGET, Topology(1, 8)).step_s


def start(number: int, *content: Op) -> Op:
    return Op(kind=OpKind.START, name="start", stream="communication_stream[0]", async_id=number, content=content)


def done(number: int) -> Op:
    return Op(kind=OpKind.DONE, name="done", async_id=number)


def test_kernel_takes_its_slowest_resource() -> None:
    def seconds(**figures: float | str) -> float:
        return kernel_time(Op(kind=OpKind.KERNEL, name="k", **figures), TARGET)

    assert seconds(bytes=0.8e12) == pytest.approx(1.0)
    assert seconds(matrix_flops=100e12, matrix_dtype="bf16") == pytest.approx(2.0)
    assert seconds(matrix_flops=100e12, matrix_dtype="f32") == pytest.approx(4.0)
    assert seconds(flops=10e12, bytes=0.4e12) == pytest.approx(1.0)


def test_communication_beside_computing_is_hidden_and_the_rest_exposed() -> None:
    beside = (start(7, gather(0.5)), kernel("a", 0.3), done(7), kernel("b", 0.1))
    found = predict_step(program(*beside), TARGET, Topology(1, 8))
    assert found.step_s == pytest.approx(0.6, rel=1e-3)
    assert found.communication_s == pytest.approx(0.5, rel=1e-3)
    assert found.exposed_s == pytest.approx(0.2, rel=1e-2)
    assert found.compute_s == pytest.approx(0.4)
    assert run(kernel("a", 0.1), start(7, gather(0.3)), kernel("b", 0.2), done(7)) == pytest.approx(0.4, rel=1e-3)
    found = predict_step(program(gather(0.2), kernel("a", 0.1)), TARGET, Topology(1, 8))
    assert found.exposed_s == pytest.approx(found.communication_s)
    assert found.step_s == pytest.approx(0.3, rel=1e-3)


def beside(cores: int, *ops: Op, target: Target = TARGET) -> Prediction:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FIGURES, "nvlink_cores", cores)
        return predict_step(program(*ops), target, Topology(1, 8))


def test_a_kernel_beside_a_collective_has_the_multiprocessors_that_it_leaves() -> None:
    hidden = beside(2, start(3, gather(0.2)), kernel("a", 0.1), done(3))  # 2 of 7 are held all the while
    assert hidden.compute_s == pytest.approx(0.1 * 7 / 5)
    longer = beside(2, start(3, gather(0.2)), kernel("a", 0.3), done(3))  # for 0.2 s only
    assert longer.step_s == pytest.approx(0.3 + 0.2 * 2 / 7, rel=1e-3)
    after = beside(2, start(3, gather(0.2)), done(3), kernel("a", 0.3))
    assert after.compute_s == pytest.approx(0.3)
    assert beside(2, gather(0.2), kernel("a", 0.3)).compute_s == pytest.approx(0.3)


@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
def test_what_a_collective_takes_from_kernels_does_not_hang_on_how_they_are_cut(pieces: int) -> None:
    kernels = [kernel(f"k{i}", 0.3 / pieces) for i in range(pieces)]
    assert beside(3, start(1, gather(0.2)), *kernels, done(1)).step_s == pytest.approx(0.3 + 0.2 * 3 / 7, rel=1e-3)


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 31])
def test_a_loop_takes_as_long_as_its_iterations_one_by_one(trips: int) -> None:
    condition, last = kernel("c", 0.01), kernel("end", 0.5)
    hidden = (start(5, gather(0.2)), kernel("a", 0.3), done(5), kernel("b", 0.05))
    open_end = (kernel("a", 0.1), start(5, gather(0.25)), kernel("b", 0.2), done(5))
    for body in (hidden, open_end):
        loop = Op(kind=OpKind.LOOP, name="while", content=body, condition=(condition,), trip_count=trips)
        for cores in (0, 3):
            one_by_one = beside(cores, *(condition, *body) * trips, last)
            assert beside(cores, loop, last).step_s == pytest.approx(one_by_one.step_s)


def test_loop_of_unknown_length_counts_once_and_is_named() -> None:
    loop = Op(kind=OpKind.LOOP, name="while.3", content=(kernel("k", 0.1),))
    found = predict_step(program(loop), TARGET, Topology(1, 8))
    assert found.step_s == pytest.approx(0.1)
    assert found.unknown_loops == ("while.3",)
    whole = predict_step(program(kernel("k", 0.5)), TARGET, Topology(1, 8))
    why = {"interval_s": None, "no_interval": "float8", "changes": ["loops: 0 -> 1"]}
    rows = [{"settings": {n: "1"}, **asdict(p), **why} for n, p in (("one", whole), ("two", found))]
    lines = text_lines("predict.txt.j2", rows=rows, agreement="good")
    assert "while.3" in lines[4]
    assert lines[1] == "  loops: 0 -> 1"


@pytest.mark.parametrize(
    ("settings", "has_time", "not_modelled", "changed"),
    [
        pytest.param({}, True, [], False, id="default"),
        pytest.param({"option.batch": "8"}, True, [], False, id="option"),
        pytest.param({rules.COMBINE: "11"}, False, [], True, id="flag"),
        pytest.param({"option.batch": "8", rules.COMBINE: "11"}, False, [], True, id="option-and-flag"),
        pytest.param({"NCCL_PROTO": "LL"}, False, ["NCCL_PROTO"], False, id="run-time"),
    ],
)
def test_flags_have_no_step_time_and_settings_of_the_run_are_named(
    settings: dict[str, str], has_time: bool, not_modelled: list[str], changed: bool
) -> None:
    row = predict_set(rules.screen(rules.Rules()), FlagSet(settings))
    assert ("step_s" in row) is has_time
    assert (row["not_modelled"], bool(row["changes"])) == (not_modelled, changed)
    lines = text_lines("predict.txt.j2", rows=[row], agreement="good")
    assert any("predicted step" in line for line in lines) is has_time
    assert any(line.endswith(": NCCL_PROTO") for line in lines) is bool(not_modelled)


def test_a_set_that_does_not_compile_says_why() -> None:
    row = predict_set(rules.screen(rules.Rules()), FlagSet({rules.COMBINE: "13"}))
    assert "thirteen" in text_lines("predict.txt.j2", rows=[row], agreement="good")[0]


def to_host(seconds: float) -> Op:
    moved = seconds * FIGURES["pcie_share"] * NETWORK.pcie_bytes_per_s
    return Op(kind=OpKind.COPY, name="copy", bytes=3 * moved, host_bytes=moved)


def test_copies_to_the_host_share_its_link_and_are_exposed_where_nothing_hides_them() -> None:
    second = start(8, to_host(0.2)).model_copy(update={"stream": "computation_stream[1]"})
    hidden = (start(7, to_host(0.3)), second, kernel("a", 0.4), done(7), done(8))
    found = predict_step(program(*hidden), TARGET, Topology(1, 8))
    assert (found.communication_s, found.exposed_s, found.step_s) == pytest.approx((0.5, 0.1, 0.5))
    assert run(to_host(0.3), kernel("a", 0.1)) == pytest.approx(0.4)
    assert beside(3, *hidden).compute_s == pytest.approx(0.4), "no multiprocessor is held by a copy"
    loop = Op(kind=OpKind.LOOP, name="while", content=(start(5, to_host(0.2)), kernel("a", 0.3), done(5)), trip_count=9)
    assert run(loop) == pytest.approx(9 * 0.3)


def test_a_superchip_reaches_its_host_by_its_own_link() -> None:
    rates = {t: load_target(t).network for t in ("h100-sxm", "gh200-96", "gb200")}
    copy = Op(kind=OpKind.COPY, name="copy", host_bytes=1e9)
    seconds = {t: predict_step(program(copy), load_target(t), Topology(1, 1)).exposed_s for t in rates}
    assert seconds["gh200-96"] < seconds["gb200"] < seconds["h100-sxm"] / 3


def test_command_buffer_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIGURES, "host_launch_s", 1.0)
    tiny = [kernel(str(i), 1e-6) for i in range(5)]
    graph = Op(kind=OpKind.GRAPH, name="g", content=tuple(tiny))
    alone = predict_step(program(*tiny), TARGET, Topology(1, 8))
    held = predict_step(program(graph), TARGET, Topology(1, 8))
    assert alone.step_s == pytest.approx(5.0, rel=1e-3)
    assert held.step_s == pytest.approx(1.0, rel=1e-3)
    assert alone.idle_s == pytest.approx(5.0, rel=1e-3)
    for name, seconds in (("host_launch_s", 0.0), ("kernel_gap_s", 0.5), ("graph_gap_s", 0.25)):
        monkeypatch.setitem(FIGURES, name, seconds)
    assert (run(*tiny), run(graph)) == pytest.approx((2.5, 1.25), rel=1e-3)


def test_mfu_and_rate_follow_from_the_step() -> None:
    found = predict_step(program(kernel("a", 0.5)), TARGET, Topology(1, 8))
    assert found.mfu == pytest.approx(2e12 / (8 * 100e12 * 0.5))
    assert found.tokens_per_s == pytest.approx(14.0)


@pytest.mark.parametrize(("xla_s", "taken"), [(None, 0.5), (0.7, 0.7), (0.2, 0.2), (0.01, 0.5), (50.0, 0.5)])
def test_xlas_own_estimate_counts_where_it_is_near_the_roofline(xla_s: float | None, taken: float) -> None:
    op = kernel("a", 0.5).model_copy(update={"xla_s": xla_s})
    assert kernel_time(op, TARGET) == pytest.approx(taken)


def test_product_is_not_timed_by_xlas_estimate_of_a_tiling_that_no_autotuner_chose() -> None:
    op = Op(kind=OpKind.KERNEL, name="p", matrix_flops=2.0 * 4096**3, matrix_dtype="bf16", product=(1, *[4096] * 3))
    estimated = op.model_copy(update={"xla_s": 2 * kernel_time(op, H100)})
    assert kernel_time(estimated, H100) == kernel_time(op, H100)


# Points of XLA's own measured table (`kDefaultMatmulPTable` in the plugin of jaxlib 0.10.2, bf16), in TFLOP/s; the
# GPU was idle before, so its matrix units reached more than they do while it trains.
@pytest.mark.parametrize(("target", "share", "product", "measured"), CASES["measured_products"])
def test_products_take_what_xla_measured(
    target: str, share: float, product: tuple[int, int, int, int], measured: float
) -> None:
    gpu, launch_s = load_target(target), 5e-6
    flops = 2.0 * math.prod(product)
    seconds = launch_s + product_time(product, gpu.flops_per_s["bf16"] * share, gpu.core_count)
    assert flops / seconds == pytest.approx(measured * 1e12, rel=0.1)


def test_attention_reaches_less_of_the_peak_backward_than_forward() -> None:
    def seconds(detail: str) -> float:
        op = Op(kind=OpKind.KERNEL, name="a", detail=detail, matrix_flops=1e12, matrix_dtype="bf16")
        return kernel_time(op, TARGET)

    assert seconds("__cudnn$fmhaSoftmax") == pytest.approx(1e12 / 57e12)
    assert seconds("__cudnn$fmhaSoftmaxBackward") == pytest.approx(1e12 / 45e12)


def test_network_of_the_user_wins_over_the_table_and_decides_what_crosses_it() -> None:
    def seconds(target: Target, group: int, nodes: int) -> float:
        op = Op(kind=OpKind.COLLECTIVE, name="g", collective=collective("all-gather", 10**10, group, nodes))
        return predict_step(program(op), target, Topology(nodes, 8)).step_s

    mega, a3 = H100.on_network(25e9), H100.on_network(12.5e9)
    assert seconds(H100, 64, 8) < 0.6 * seconds(mega, 64, 8)
    assert seconds(a3, 64, 8) == pytest.approx(2 * seconds(mega, 64, 8), rel=0.05)
    assert seconds(H100.on_network(None), 8, 1) == seconds(a3, 8, 1)


@pytest.mark.parametrize(("kind", "size", "group", "nodes", "network", "expected_s"), CASES["collectives"])
def test_collectives_move_their_share_over_the_slowest_link(
    kind: str, size: float, group: int, nodes: int, network: dict[str, float], expected_s: float
) -> None:
    links = Network(**{**asdict(NETWORK), **network})
    found = collective_time(collective(kind, int(size), group, nodes), links, links.gpus_per_node)
    assert found == pytest.approx(expected_s, rel=0.01)


# XLA's own measured table of collectives (`kDefaultCollectivePTable` in the plugin of jaxlib 0.10.2): 8 GPUs, in us.
@pytest.mark.parametrize(("target", "kind", "size", "measured_us"), CASES["measured_collectives"])
def test_collectives_take_what_xla_measured(target: str, kind: str, size: int, measured_us: float) -> None:
    network = there(load_target(target).network)
    ratio = collective_time(collective(kind, size), network, 8) / (measured_us * 1e-6)
    assert 0.7 < ratio < 1.3
