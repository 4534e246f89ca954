"""Units of work are claimed by exactly one living worker, and given back when it dies."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.machine.devices import parse_devices, reserve_devices, worker_name
from autotune.model.errors import LaunchError, RunDirectoryError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.model.trial import TrialConfig
from autotune.rundir.claims import CLAIMS, WORKERS, SharedClaims, SoleClaims, Unit, list_workers, work_off
from autotune.rundir.store import Store, is_held


@contextlib.contextmanager
def workers(run: Path, *names: str) -> Iterator[list[SharedClaims]]:
    """Some workers of one run directory, in this process."""
    made = [SharedClaims(run, n, heartbeat_s=0.05) for n in names]
    try:
        yield made
    finally:
        for claims in made:
            claims.close()


def config(number: int, **settings: str) -> TrialConfig:
    return TrialConfig(number=number, settings=FlagSet(settings), origin="test")


def make_elsewhere(run: Path, owner: str) -> Path:
    """A worker file as if written on another machine."""
    file = run / WORKERS / owner
    file.write_text(json.dumps({"worker": "w", "host": "elsewhere", "boot": "b", "pid": 1}), encoding="utf-8")
    return file


def forge_claim(run: Path, key: str, owner: str) -> None:
    (run / CLAIMS / f"{key}.1").write_text(json.dumps({"owner": owner}), encoding="utf-8")


def test_a_unit_is_taken_once_and_again_only_by_its_owner(tmp_path: Path) -> None:
    with workers(tmp_path, "a", "b") as (a, b):
        assert a.take("trial-0001") == 1
        assert b.take("trial-0001") is None
        assert b.is_taken("trial-0001")
        assert not a.is_taken("trial-0001")
        assert a.take("trial-0001") == 1
        assert b.take("trial-0002") == 1


def _take_all(run: Path, name: str, keys: int, out: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    claims = SharedClaims(run, name)
    out.put([k for k in range(keys) if claims.take(f"unit-{k}") is not None])
    time.sleep(1.0)  # alive until all others have looked
    claims.close()


def test_processes_that_race_share_the_units_without_overlap(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[list[int]] = context.Queue()
    processes = [context.Process(target=_take_all, args=(tmp_path, f"w{i}", 53, queue)) for i in range(3)]
    for process in processes:
        process.start()
    taken = [k for _ in processes for k in queue.get(timeout=60)]
    for process in processes:
        process.join()
    assert sorted(taken) == list(range(53))


def test_a_worker_that_ended_cleanly_leaves_its_units_and_no_death(tmp_path: Path) -> None:
    with workers(tmp_path, "b") as (b,):
        with workers(tmp_path, "a") as (a,):
            assert a.take("trial-0001") == 1
        assert b.take("trial-0001") == 2
        assert b.deaths("trial-0001") == 0


def _die_with_a_unit(run: Path) -> None:
    SharedClaims(run, "victim").take("trial-0001")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_killed_on_this_machine_is_dead_at_once_and_its_death_counts(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_with_a_unit, args=(tmp_path,))
    process.start()
    process.join()
    assert {w.worker: w.state for w in list_workers(tmp_path)} == {"victim": "died"}
    with workers(tmp_path, "b") as (b,):
        assert b.take("trial-0001") == 2
        assert b.deaths("trial-0001") == 1


def test_a_worker_elsewhere_is_judged_by_the_age_of_its_heartbeat(tmp_path: Path) -> None:
    with workers(tmp_path, "b") as (b,):
        file = make_elsewhere(tmp_path, "far.1")
        forge_claim(tmp_path, "trial-0001", "far.1")
        now_s = time.time()
        os.utime(file, (now_s - 50, now_s - 50))
        assert b.take("trial-0001") is None
        os.utime(file, (now_s - 70, now_s - 70))
        assert b.take("trial-0001") == 2
        assert b.deaths("trial-0001") == 1


def test_a_result_of_a_worker_that_only_seemed_dead_does_not_count(tmp_path: Path) -> None:
    with workers(tmp_path, "a", "b") as (a, b):
        attempt = a.take("trial-0001")
        assert attempt == 1
        a._lives = lambda owner: True  # type: ignore[method-assign]
        b._lives = lambda owner: owner == b._owner  # type: ignore[method-assign]
        assert b.take("trial-0001") == 2
        assert not a.commit("trial-0001", attempt)
        assert b.commit("trial-0001", 2)


def test_a_unit_committed_can_not_be_taken_over_by_who_thinks_its_worker_dead(tmp_path: Path) -> None:
    with workers(tmp_path, "a", "b") as (a, b):
        assert a.take("trial-0001") == 1
        assert a.commit("trial-0001", 1)
        assert not b._link("trial-0001", 2)


def test_a_set_belongs_to_one_trial_and_goes_with_it(tmp_path: Path) -> None:
    with workers(tmp_path, "a", "b") as (a, b):
        assert a.take_set(config(1, xla_a="1"))
        assert not b.take_set(config(2, xla_a="1"))
        assert b.take_set(config(2, xla_a="2"))
        assert b.take_set(config(1, xla_a="1"))  # given back: the same trial goes on with its set
        assert {n: c.settings for n, c in a.sets().items()} == {
            1: FlagSet({"xla_a": "1"}), 2: FlagSet({"xla_a": "2"}),
        }  # fmt: skip


def test_the_search_is_over_as_long_as_the_one_who_ended_it_lives(tmp_path: Path) -> None:
    with workers(tmp_path, "b") as (b,):
        with workers(tmp_path, "a") as (a,):
            a.end_search()
            assert b.search_is_over()
        assert not b.search_is_over()


def test_work_is_shared_and_all_return_when_it_is_done(tmp_path: Path) -> None:
    done: list[str] = []

    def unit(name: str) -> Unit:
        return Unit(name, lambda: name in done, lambda attempt: done.append(name))

    with workers(tmp_path, "a", "b") as (a, b):
        assert b.take("second") == 1
        done_by_b = [unit("second")]
        units = [unit("first"), unit("second"), unit("third")]
        waits: list[int] = []

        @contextlib.contextmanager
        def waiting() -> Iterator[None]:
            waits.append(len(done))
            work_off(b, done_by_b, waiting=contextlib.nullcontext)
            yield

        work_off(a, units, waiting=waiting)
    assert done == ["first", "third", "second"]
    assert waits == [2]


def test_a_sole_driver_owns_everything() -> None:
    sole = SoleClaims()
    assert (sole.take("x"), sole.commit("x", 1), sole.deaths("x"), sole.sets()) == (1, True, 0, {})
    assert not sole.is_taken("x")
    assert not sole.search_is_over()


# ---------------------------------------------------------------------- the run directory

SPEC = parse_study({"name": "s", "workload": {"entry": "llama"}, "replay": {}})


def test_two_workers_of_one_name_are_refused(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n1")
    with pytest.raises(RunDirectoryError, match=r"a living one is called 'n1'.*--name"):
        Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n1")
    store.close()
    Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n1").close()


def test_a_sole_driver_and_workers_exclude_each_other(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n1")
    assert is_held(tmp_path / "r")
    with pytest.raises(RunDirectoryError, match=r"only one driver.*worker n1.*autotune worker"):
        Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path)
    store.close()
    assert not is_held(tmp_path / "r")
    sole = Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path)
    with pytest.raises(RunDirectoryError, match="only one driver"):
        Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n2")
    sole.close()


def test_a_sole_driver_is_refused_while_a_worker_lives_on_another_machine(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="n1").close()
    make_elsewhere(tmp_path / "r", "far.1")
    assert is_held(tmp_path / "r")
    with pytest.raises(RunDirectoryError, match="worker far"):
        Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path)


def test_a_name_with_a_path_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="plain name"):
        Store.create_or_resume(tmp_path / "r", SPEC, study_dir=tmp_path, worker="../../etc/x")


# ---------------------------------------------------------------------- devices


def test_devices_are_lists_and_spans() -> None:
    assert parse_devices("0, 2-4") == ("0", "2", "3", "4")
    assert parse_devices("GPU-8f1a,MIG-1/2") == ("GPU-8f1a", "MIG-1/2")
    for wrong in ("", "0,0", "3-1", "0;rm", "../x"):
        with pytest.raises(StudyFileError, match="device"):
            parse_devices(wrong)


def test_a_device_is_held_by_one_study_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with reserve_devices("cuda", ("0", "1")), reserve_devices("cuda", ("2",)), reserve_devices("cpu", ("0",)):
        wanted = f"cuda device 1 is in use.*process {os.getpid()}.*--devices"
        with pytest.raises(LaunchError, match=wanted), reserve_devices("cuda", ("1", "3")):
            pass
        with reserve_devices("cuda", ("3",)):
            pass
    with reserve_devices("cuda", ("1",)):
        pass


def test_a_worker_is_called_by_its_place() -> None:
    assert worker_name({}, "node7.cluster.org", ("0", "1")) == "node7-0-1"
    assert worker_name({"SLURM_JOB_ID": "42", "SLURM_LOCALID": "0"}, "n1", ()) == "n1-42-0"
    assert worker_name({}, "n 1", ("MIG-1/2",)) == "n_1-MIG-1_2"
