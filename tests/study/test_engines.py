"""Which lanes a study gets; what is mistyped is told before anything starts."""

from __future__ import annotations

import pytest

from autotune.model.errors import LaunchError, StudyFileError
from autotune.study.engines import choose_engine, parse_groups
from tests.runs import replay_study


def test_each_part_between_commas_is_a_lane() -> None:
    assert parse_groups("0-3,4-7") == (("0", "1", "2", "3"), ("4", "5", "6", "7"))
    assert parse_groups("0+2,1+3") == (("0", "2"), ("1", "3"))
    assert parse_groups("0,1") == (("0",), ("1",))
    assert parse_groups(None) == ()


@pytest.mark.parametrize("text", ["", "0,,1", "x,,", "0,", "+", "0-3,2-5", "0,0", "3-1", "a b"])
def test_what_is_no_group_of_devices_is_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match="must be"):
        parse_groups(text)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "nonsense", "tls://:1", "tls://host", "tls://host:99999"])
def test_an_address_that_is_none_is_refused_before_there_is_a_run_directory(address: str) -> None:
    with pytest.raises(LaunchError, match="must look like tls://HOST:PORT"):
        choose_engine(replay_study(), (), listen=address)


def test_a_pool_and_devices_of_this_machine_exclude_each_other() -> None:
    with pytest.raises(StudyFileError, match="leave one out"):
        choose_engine(replay_study(), (("0",), ("1",)), listen="tls://127.0.0.1:0")
