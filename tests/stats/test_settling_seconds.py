"""How soon a device settles is learned from blocks that show it; blocks that show nothing leave it as planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.stats.aa_noise import read_aa_noise, settling_seconds, share_to_count

PLANNED_S, COUNTED_S = 3.0, 2.0


def blocks(
    *, step_s: float, share: float, lasts_s: float, fades: bool = False, sd: float = 0.0007, count: int = 12
) -> list[tuple[list[float], list[float]]]:
    """Blocks whose steps are faster by a share for some seconds, or by a share that fades with that time constant."""
    rng = np.random.default_rng(7)
    made = []
    for _ in range(count):
        at_s, settling, counted = 0.0, list[float](), list[float]()
        while at_s < PLANNED_S + COUNTED_S:
            boost = share * np.exp(-at_s / lasts_s) if fades else share * (at_s < lasts_s)
            took_s = step_s * float(np.exp(sd * rng.standard_normal())) * (1.0 - boost)
            (settling if at_s < PLANNED_S else counted).append(took_s)
            at_s += took_s
        made.append((settling, counted))
    return made


@pytest.mark.parametrize("step_s", [0.02, 0.258, 0.8])
def test_a_device_that_is_fast_for_a_moment_settles_soon_after_it(step_s: float) -> None:
    found = settling_seconds(blocks(step_s=step_s, share=0.015, lasts_s=0.7), PLANNED_S)
    assert found is not None
    assert 0.7 <= found <= max(1.6, 2 * step_s + 0.5)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param({"share": 0.0, "lasts_s": 1.0}, id="nothing to be seen"),
        pytest.param({"share": 0.0015, "lasts_s": 0.7}, id="less than what counts"),
        pytest.param({"share": 0.015, "lasts_s": 0.7, "sd": 0.2}, id="lost in noise"),
        pytest.param({"share": 0.03, "lasts_s": 2.0, "fades": True}, id="a slow clock"),
        pytest.param({"share": 0.015, "lasts_s": 9.0}, id="longer than the blocks"),
        pytest.param({"share": 0.015, "lasts_s": 0.7, "count": 1}, id="one block"),
    ],
)
def test_what_blocks_do_not_show_is_as_planned(shown: dict[str, float]) -> None:
    found = settling_seconds(blocks(step_s=0.1, **shown), PLANNED_S)  # type: ignore[arg-type]
    assert found is None or found >= PLANNED_S


def test_blocks_without_settling_steps_say_nothing() -> None:
    assert settling_seconds([([], [0.1] * 5)] * 6, PLANNED_S) is None
    assert settling_seconds([([], [0.1] * 5)] * 6, 0.0) is None


@pytest.mark.parametrize(
    ("within_sd", "process_sd", "share"),
    [
        pytest.param(0.0003, 0.002, 0.25, id="processes differ most"),
        pytest.param(0.002, 0.002, 1.0, id="blocks differ as much"),
        pytest.param(0.02, 0.002, 1.0, id="blocks differ most"),
        pytest.param(0.0, 0.0, 1.0, id="nothing differs"),
    ],
)
def test_blocks_count_shorter_only_where_longer_ones_tell_nothing(
    within_sd: float, process_sd: float, share: float
) -> None:
    noise = read_aa_noise([[within_sd, -within_sd] * 4] * 3, start_s=10.0)
    noise = replace(noise, within_sd=within_sd, process_sd=process_sd)
    found = share_to_count(noise, counted_s=2.0, settle_s=1.0)
    assert found == pytest.approx(share, abs=0.05)
    assert replace(noise, counted_share=found).later_sd == pytest.approx(within_sd / np.sqrt(found))
