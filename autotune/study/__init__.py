"""The stages of a study, in order."""

from autotune.study.draft import (
    Plan,
    SPREADS,
    WHY,
    WORTH_TRIALS,
    checked,
    example_text,
    plan_of,
    plan_unseen,
    toml_lines,
)
from autotune.study.engines import (
    choose_engine,
    parse_groups,
)
from autotune.study.preflight import preview_space
from autotune.study.priors import LibraryWinners
from autotune.study.confirm import (
    prove,
    unsettled,
)
from autotune.study.recheck import (
    Verification,
    new_recheck,
    recheck_directory,
    recheck_study,
    recheck_winner,
    verify_winner,
)
from autotune.study.reproduce import (
    find_trial,
    reproduce_trial,
    shell_lines,
)
from autotune.study.run import (
    Stopped,
    StudyRun,
    stoppable,
)
from autotune.study.stages import (
    new_run,
    noise_floor,
    probe,
    run_study,
    study_with,
)
from autotune.study.status import (
    StudyStatus,
    UnreadableRun,
    format_lanes,
    format_stage,
    study_status,
)
from autotune.study.compare import (
    ComparisonRequest,
    fixed,
    sequential,
)
from autotune.study.runner import (
    LocalExecutor,
    TaskRunner,
)
from autotune.study.probe import (
    ProbeRequest, ProbeResult, default_platform, device_count, device_words, probe_program, program_python, read_log,
    reading_of, refuse_one_word, run_request,
)  # fmt: skip
