"""What several rooms share: flag sets, study files, records, errors, units."""

from autotune.model.artefacts import (
    Artefact,
    artefacts_of,
    digest_of,
    file_name,
    in_folder,
    reference_to,
    unpack,
)
from autotune.model.clock import Stopwatch
from autotune.model.errors import (
    AutotuneError, LaunchError, NodeLostError, NotComparableError, RunDirectoryError, STOPPED, SettingError,
    StudyFileError, close_matches,
)  # fmt: skip
from autotune.model.flags import (
    ARTEFACT_SETTINGS, DUMPED_KERNELS, FlagSet, FlagToken, KERNELS, OPTION, PROFILE, Value, combine, is_variable,
    kind_of, parse_set, parse_tokens, refuse_reaching_out, render_value, shrink,
)  # fmt: skip
from autotune.model.kernels import (
    DUMP_FILE,
    DUMP_HERE,
    DUMP_VARIABLE,
    KernelSpread,
    kernel_spread,
    kernels_of,
    read_choices,
)
from autotune.model.measurement import (
    ABA, Arm, ArmOfGpus, Comparison, DeviceMemory, EnergyUse, Failure, FailureKind, GpuState, GpusDuring, HELD_BACK,
    INTERLEAVED, LOSS_NOT_CHECKED, LossBasis, LossCheck, NOT_TOLD, Pair, SameStep, Settings, Stamped, WorkPerStep,
    WorkerReport, WorkloadFacts, block_step_s, held_in_one_arm, is_divided_as_told, log_ratio,
)  # fmt: skip
from autotune.model.numbers import (
    AtLeastOne,
    Count,
    Elapsed,
    Record,
)
from autotune.model.options import (
    FOLDER,
    PROCESS_COUNT,
    dotted,
    filled,
    option_setting,
    option_text,
    options_in,
    placeholders,
    plain,
)
from autotune.model.proofs import (
    ALONE, GAIN, Reestimate, Standing, alone_of, describe_stalls, figures_of, format_growth, gain_of, judge_soak,
    ratios_of, reestimate, runs_after, runs_of, standing,
)  # fmt: skip
from autotune.model.records import (
    AblationResult, AnyRecord, BestPredicted, BlameRecord, Callbacks, ConclusionRecord, ConfirmRun, EffectsRecord,
    FinalistResult, FloorResult, INERT, IncidentRecord, LedgerRecord, LeftOut, MemoryUse, Outcome, PairEffect,
    PowerAnalysis, ProfileRecord, ProofRecord, RECORD, REESTIMATES, REFERENCE_NUMBER, SCHEMA_VERSION, ScreenRecord,
    SessionRecord, SettingEffect, SoakArm, SoakArms, SoakLook, SoakRecord, SpanRecord, TrialConfig, TrialOutcome,
    TrialResult, TrialStatus, ValueEffect, names_left_out,
)  # fmt: skip
from autotune.model.redaction import (
    REDACTED,
    redact_command,
    redact_text,
    redacted_names,
    refuse_redacted,
    visible,
    visible_line,
)
from autotune.model.sections import (
    ReadSpec,
    SearchSpec,
    WITH_SECRETS,
)
from autotune.model.spec import (
    Effort,
    SOAK_STEPS_OF_RUNS,
    STUDY_NAME,
    StudySpec,
    load_study,
    parse_study,
)
from autotune.model.time_limits import (
    COMPILE_FACTOR,
    CompileLimits,
    TimeLimits,
    compile_limits,
    limits_after,
)
from autotune.model.turn_sizes import (
    BLOCK_STEPS,
    CHECK_STEPS,
    TurnCosts,
    WARMUP_STEPS,
)
from autotune.model.units import (
    format_bytes, format_change, format_change_of, format_count, format_detectable, format_interval, format_joules,
    format_ratio, format_seconds, format_share, parse_duration,
)  # fmt: skip
