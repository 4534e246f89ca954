"""The stages of a study, in order."""

from autotune.study.comparer import Compared, fixed, sequential
from autotune.study.draft import (
    SPREADS, WHY, WORTH_TRIALS, Plan, checked, example_text, plan_of, plan_unseen, toml_lines,
)  # fmt: skip
from autotune.study.engines import choose_engine, parse_groups
from autotune.study.foretell import foretell_space
from autotune.study.here import Here
from autotune.study.interrupt import Stopped, stoppable
from autotune.study.library_priors import NO_LESSONS, Lessons
from autotune.study.priors import Prior
from autotune.study.probe import (
    ProbeRequest, ProbeResult, default_platform, device_count, device_words, probe_program, program_python, read_log,
    reading_of, refuse_one_word, run_request,
)  # fmt: skip
from autotune.study.proof import prove, unsettled
from autotune.study.recheck import recheck_directory, recheck_study, recheck_winner
from autotune.study.reproduce import Reproduction, find_trial, reproduce_trial, shell_lines
from autotune.study.run import StudyRun
from autotune.study.runner import Runner
from autotune.study.stages import noise_floor, probe, run_study
from autotune.study.start import new_recheck, new_run, study_with
from autotune.study.status import StudyStatus, UnreadableRun, describe_lanes, describe_stage, study_status
from autotune.study.verify import Verification, verify_winner
