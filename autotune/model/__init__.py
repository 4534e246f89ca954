"""What several rooms share: flag sets, study files, records, errors, units."""

from autotune.model.artefacts import Artefact, artefacts_of, digest_of, file_name, in_folder, reference_to, unpack
from autotune.model.clock import Stopwatch
from autotune.model.errors import (
    STOPPED, AutotuneError, LaunchError, NodeLostError, NotComparableError, RunDirectoryError, SettingError,
    StudyFileError, close_matches,
)  # fmt: skip
from autotune.model.flags import (
    ARTEFACT_SETTINGS, DUMPED_KERNELS, KERNELS, OPTION, PROFILE, FlagSet, FlagToken, Value, combine,
    is_variable, kind_of, parse_set, parse_tokens, refuse_reaching_out, render_value, shrink,
)  # fmt: skip
from autotune.model.kernels import (
    DUMP_FILE, DUMP_HERE, DUMP_VARIABLE, KernelSpread, kernel_spread, kernels_of, read_choices,
)  # fmt: skip
from autotune.model.measurement import (
    HELD_BACK, LOSS_NOT_CHECKED, NOT_TOLD, TURNS, Arm, ArmOfGpus, Comparison, DeviceMemory, EnergyUse, Failure,
    FailureKind, GpusDuring, GpuState, LossBasis, LossCheck, Pair, SameStep, Settings, Stamped, WorkerReport,
    WorkloadFacts, WorkPerStep, block_step_s, held_in_one_arm, is_divided_as_told, log_ratio,
)  # fmt: skip
from autotune.model.numbers import AtLeastOne, Count, Elapsed, Record
from autotune.model.options import (
    FOLDER, PROCESS_COUNT, dotted, filled, option_setting, option_text, options_in, placeholders, plain,
)  # fmt: skip
from autotune.model.proofs import (
    ALONE, GAIN, Reestimate, Standing, alone_of, describe_stalls, figures_of, format_growth, gain_of, judge_soak,
    ratios_of, reestimate, runs_after, runs_of, standing,
)  # fmt: skip
from autotune.model.records import (
    INERT, RECORD, REESTIMATES, REFERENCE_NUMBER, SCHEMA_VERSION, AblationResult, AnyRecord, BestPredicted,
    BlameRecord, Callbacks, ConclusionRecord, ConfirmRun, EffectsRecord, FinalistResult,
    FloorResult, IncidentRecord, LedgerRecord, LeftOut, MemoryUse, Need, Outcome, PairEffect,
    PairValueEffect, ProfileRecord, Promise, ProofRecord, ScreenRecord, SessionRecord, SettingEffect, SoakArm,
    SoakArms, SoakLook, SoakRecord, SpanRecord, Suspect, TrialConfig, TrialOutcome, TrialResult, TrialStatus,
    ValueEffect, names_left_out,
)  # fmt: skip
from autotune.model.redaction import (
    REDACTED, redact_command, redact_text, redacted_names, refuse_redacted, visible, visible_line,
)  # fmt: skip
from autotune.model.replay import ReplaySpec
from autotune.model.sections import WITH_SECRETS, ReadSpec, SearchSpec
from autotune.model.spec import SOAK_STEPS_OF_RUNS, STUDY_NAME, Effort, StudySpec, load_study, parse_study
from autotune.model.time_limits import COMPILE_FACTOR, CompileLimits, TimeLimits, compile_limits, limits_after
from autotune.model.turn_sizes import BLOCK_STEPS, CHECK_STEPS, EVERY_STEP, WARMUP_STEPS, TurnCosts, TurnSizes
from autotune.model.units import (
    format_bytes, format_change, format_change_of, format_count, format_detectable, format_interval, format_joules,
    format_ratio, format_seconds, format_share, parse_duration,
)  # fmt: skip
