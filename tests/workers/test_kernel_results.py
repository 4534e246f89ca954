"""Workers on GPUs are told where to leave what the autotuner chose, each in a place of its own under the same flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import DUMPED_KERNELS, KERNELS, FlagSet
from autotune.model.kernels import DUMP_FILE, DUMP_HERE, DUMP_VARIABLE
from autotune.model.measurement import Failure, FailureKind
from autotune.model.options import option_setting
from autotune.model.spec import parse_study
from autotune.workers import local
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalLauncher
from autotune.workers.settings_check import check_environment

ONE_GPU = {"platform": "cuda", "count": 1}
OURS = f"--{DUMPED_KERNELS}={DUMP_VARIABLE}/{DUMP_FILE}"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Environments of the processes that would have been started."""
    found: list[dict[str, str]] = []
    monkeypatch.setattr(local, "GuardedProcess", lambda command, env, log: found.append(dict(env)))
    return found


def launcher(device: dict[str, Any], **more: Any) -> LocalLauncher:
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}, "device": device, **more})
    return LocalLauncher(spec, study_dir=".", base={})


def test_each_process_has_a_place_of_its_own_under_the_same_flags(told: list[dict[str, str]], tmp_path: Path) -> None:
    found = launcher(ONE_GPU)
    for name in ("one", "two"):
        found._processes(FlagSet({"xla_a": "1"}), tmp_path / name)
    assert [env[DUMP_VARIABLE] for env in told] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert told[0]["XLA_FLAGS"] == told[1]["XLA_FLAGS"]
    assert set(told[0]["XLA_FLAGS"].split()) == {"--xla_a=1", OURS}


@pytest.mark.parametrize("own", [{KERNELS: "/x/results.textproto"}, {DUMPED_KERNELS: "/x/mine.textproto"}])
def test_who_has_results_of_his_own_is_left_alone(
    told: list[dict[str, str]], tmp_path: Path, own: dict[str, str]
) -> None:
    launcher(ONE_GPU)._processes(FlagSet(own), tmp_path)
    ((name, value),) = own.items()
    assert told[0]["XLA_FLAGS"] == f"--{name}={value}"
    assert DUMP_VARIABLE not in told[0]


@pytest.mark.parametrize(
    ("device", "settings"),
    [
        ({"platform": "cpu"}, {}),
        ({"platform": "cuda", "count": 2, "process_count": 2}, {}),
        ({"platform": "cuda", "count": 2}, {option_setting("process_count"): "2"}),
    ],
    ids=["cpu", "ranks", "ranks by an option"],
)
def test_where_they_would_say_nothing_or_write_over_each_other_they_are_not_left(
    told: list[dict[str, str]], tmp_path: Path, device: dict[str, Any], settings: dict[str, str]
) -> None:
    search = {"search": {"options": {"process_count": [1, 2]}}} if settings else {}
    launcher(device, **search)._processes(FlagSet(settings), tmp_path)
    assert all(DUMP_VARIABLE not in env and DUMPED_KERNELS not in env.get("XLA_FLAGS", "") for env in told)


@pytest.mark.parametrize("knows", [True, False])
def test_a_build_that_does_not_know_the_flag_ends_no_study(
    told: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    def begin(self: LocalLauncher, worker: Any, jobs: Any, progress: Any) -> Any:
        if not knows and DUMPED_KERNELS in told[-1].get("XLA_FLAGS", ""):
            line = f"Unknown flags in XLA_FLAGS: {OURS}"
            raise WorkerFailed(
                Failure(kind=FailureKind.UNKNOWN_FLAG, message="1 flag", phase="build", last_lines=(line,))
            )
        return worker

    monkeypatch.setattr(LocalLauncher, "_begin", begin)
    found = launcher(ONE_GPU)
    for _ in range(2):
        found.start(FlagSet({"xla_a": "1"}), tmp_path, progress=lambda phase: None)
    asked = [OURS in env["XLA_FLAGS"] for env in told]
    assert asked == ([True, True] if knows else [True, False, False])  # it is asked once


def test_another_failure_is_told_and_not_tried_again(
    told: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: LocalLauncher, worker: Any, jobs: Any, progress: Any) -> Any:
        raise WorkerFailed(Failure(kind=FailureKind.UNKNOWN_FLAG, message="--xla_a is unknown", phase="build"))

    monkeypatch.setattr(LocalLauncher, "_begin", begin)
    with pytest.raises(WorkerFailed, match="xla_a"):
        launcher(ONE_GPU).start(FlagSet({"xla_a": "1"}), tmp_path, progress=lambda phase: None)
    assert len(told) == 1


def test_what_is_ours_is_neither_lost_nor_an_addition_of_the_program_s() -> None:
    for flags in (None, OURS):
        found = check_environment(FlagSet(), {"XLA_FLAGS": flags})
        assert not found.lost
        assert not found.notes
    assert check_environment(FlagSet(), {"XLA_FLAGS": f"--{DUMPED_KERNELS}=/mine.textproto"}).notes
    assert check_environment(FlagSet(DUMP_HERE), {"XLA_FLAGS": None}).lost
