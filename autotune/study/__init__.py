"""The stages of a study, in order."""

from autotune.study.comparer import Compared, fixed, sequential
from autotune.study.draft import SPREADS, WHY, WORTH_TRIALS, Plan, checked, example_text, plan_entry, plan_hook, plan_of
from autotune.study.engines import choose_engine, parse_groups
from autotune.study.foretell import foretell_space
from autotune.study.here import Here
from autotune.study.interrupt import Stopped, stoppable
from autotune.study.interpreter import program_python
from autotune.study.library_priors import NO_LESSONS, Lessons
from autotune.study.proof import prove, unsettled
from autotune.study.read_lines import read_command, read_log, show_reading
from autotune.study.recheck import recheck_directory, recheck_study, recheck_winner
from autotune.study.reproduce import find_trial, reproduce_trial, shell_lines
from autotune.study.run import StudyRun
from autotune.study.runner import Runner
from autotune.study.stages import STAGES, noise_floor, probe, run_study
from autotune.study.start import new_recheck, new_run, study_with
from autotune.study.status import StudyStatus, UnreadableRun, describe_lanes, describe_stage, study_status
from autotune.study.understanding import (
    Asked, Understood, default_platform, device_count, device_words, refuse_one_word, understand,
)  # fmt: skip
from autotune.study.verify import verify_winner
