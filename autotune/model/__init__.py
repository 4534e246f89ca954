"""What flows through a study: flag sets, study files, records, errors, units."""

from autotune.model.ablation import AblationResult, LeftOut, names_left_out
from autotune.model.artefacts import Artefact, artefacts_of, digest_of, file_name, in_folder, reference_to, unpack
from autotune.model.blocks import TURNS, block_step_s, is_divided_as_told, log_ratio
from autotune.model.clock import Stopwatch
from autotune.model.delta import shrink
from autotune.model.effects import (
    INERT, BestPredicted, EffectsRecord, PairEffect, PairValueEffect, SettingEffect, Suspect, ValueEffect,
)  # fmt: skip
from autotune.model.errors import (
    STOPPED, AutotuneError, LaunchError, NodeLostError, NotComparableError, RunDirectoryError, SettingError,
    StudyFileError, close_matches,
)  # fmt: skip
from autotune.model.flags import (
    FlagSet, FlagToken, Value, combine, format_set, parse_set, parse_tokens, render_value,
)  # fmt: skip
from autotune.model.kernels import (
    DUMP_FILE, DUMP_HERE, DUMP_VARIABLE, KernelSpread, kernel_spread, kernels_of, read_choices,
)  # fmt: skip
from autotune.model.long_run import MemoryUse, SoakArm, SoakArms, SoakLook
from autotune.model.losses import LOSS_NOT_CHECKED, LossBasis, LossCheck
from autotune.model.measurement import (
    NOT_TOLD, Arm, Comparison, DeviceMemory, EnergyUse, Failure, FailureKind, Pair,
    Record, SameStep, Settings, Stamped, WorkerReport, WorkloadFacts, WorkPerStep,
)  # fmt: skip
from autotune.model.names import (
    ARTEFACT_SETTINGS, DUMPED_KERNELS, KERNELS, OPTION, PROFILE, is_variable, kind_of, refuse_reaching_out,
)  # fmt: skip
from autotune.model.numbers import Count, AtLeastOne, Elapsed
from autotune.model.observer import View
from autotune.model.options import (
    FOLDER, PROCESS_COUNT, dotted, filled, option_setting, option_text, options_in, placeholders, plain,
)  # fmt: skip
from autotune.model.gpus import HELD_BACK, ArmOfGpus, GpusDuring, GpuState, held_in_one_arm
from autotune.model.proofs import (
    ALONE, GAIN, OnceMore, Standing, alone_of, gain_of, once_more, ratios_of, runs_after, runs_of, standing,
)  # fmt: skip
from autotune.model.promise import Need, Promise
from autotune.model.records import (
    ONCE_MORE, RECORD, SCHEMA_VERSION, AnyRecord, BlameRecord, ConclusionRecord, ConfirmRun, FinalistResult,
    FloorResult, IncidentRecord, LedgerRecord, Outcome, ProfileRecord, ProofRecord, ScreenRecord,
    SessionRecord, SoakRecord, SpanRecord,
)  # fmt: skip
from autotune.model.secrets import (
    STRUCK, refuse_struck, strike_command, strike_text, struck_names,
)  # fmt: skip
from autotune.model.replay import ReplaySpec
from autotune.model.search_sections import SearchSpec
from autotune.model.sections import WITH_SECRETS, ReadSpec
from autotune.model.spec import STUDY_NAME, Effort, StudySpec, load_study, parse_study
from autotune.model.time_limits import COMPILE_FACTOR, CompileLimits, TimeLimits, compile_limits, limits_after
from autotune.model.totals import describe_stalls, figures_of, format_growth, judge_soak
from autotune.model.trial import (
    REFERENCE_NUMBER, Failed, Measured, TrialConfig, TrialOutcome, TrialResult, TrialStatus, Twin,
)  # fmt: skip
from autotune.model.turn_sizes import TurnCosts, TurnSizes
from autotune.model.units import (
    format_bytes, format_change, format_change_of, format_count, format_detectable, format_interval, format_joules,
    format_ratio, format_seconds, format_share, parse_duration,
)  # fmt: skip
from autotune.model.escapes import visible, visible_line
