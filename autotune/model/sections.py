"""The sections of a study file, each checked on its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from autotune.child.steps import PRESETS, Rules, StepReader
from autotune.model.errors import StudyFileError, close_matches, first_problem
from autotune.model.files import Table, Texts
from autotune.model.flags import FlagSet, kind_of
from autotune.model.measurement import Settings
from autotune.model.options import (
    FOLDER,
    Domains,
    factors,
    filled_command,
    option_sets,
    option_setting,
    option_text,
    placeholders,
)
from autotune.model.plugins import CLASS_PATH
from autotune.model.redaction import redact_data
from autotune.model.units import parse_bytes, parse_duration
from autotune.stats.long_run import MOST_LOOKS, SOAK_LOOKS


class Section(BaseModel):
    """A table of a study file, whose schema describes each key by the text below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def number_or_text(pattern: str, *, least: str = "exclusiveMinimum") -> WithJsonSchema:
    """Schema of a number or text with a unit, such as ``30m``; `least` names its bound 0."""
    number = {"type": "number", least: 0}
    text = {"type": "string", "pattern": pattern}
    return WithJsonSchema({"anyOf": [number, text]}, mode="validation")


_DURATION = r"^((\s*\d+(\.\d+)?\s*(ms|s|m|min|h|d))+\s*|(\d+-)?\d+:\d\d:\d\d)$"

Seconds = Annotated[float, BeforeValidator(parse_duration), number_or_text(_DURATION)]


def _duration_or_none(value: str | float) -> float:
    """Seconds of a duration that may be 0, for none."""
    return 0.0 if value in (0, "0", "0s") else parse_duration(value)


SoakSeconds = Annotated[
    float, BeforeValidator(_duration_or_none), number_or_text(_DURATION, least="minimum")
]

_BYTES = r"^\s*\d+(\.\d+)?\s*([KMGT]i?)?B?\s*$"

Bytes = Annotated[int, BeforeValidator(parse_bytes), number_or_text(_BYTES)]


def _product(value: Any) -> Any:
    """Checks a whole number or a product, as text."""
    if type(value) is int:
        value = str(value)
    if isinstance(value, str):
        factors(value)
    return value


Product = Annotated[
    str,
    BeforeValidator(_product),
    WithJsonSchema({"type": ["string", "integer"]}, mode="validation"),
]

# Ways to split a step over devices: axes of `workload.mesh`.
Axis = Literal["data", "fsdp", "tensor", "pipeline", "context", "expert"]

DeviceCount = Annotated[int, Field(ge=1, le=4096)]

WITH_SECRETS = {"secrets": True}  # context of a dump that stays in this process

STUDY_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def _without_secrets(
    value: Any, dump: SerializerFunctionWrapHandler, info: SerializationInfo
) -> Any:
    """Dumps options or a command, with secrets only where the context keeps them."""
    if not (info.context or {}).get("secrets"):
        value = redact_data(value)
    return dump(value)


class ReadSpec(Section):
    """How the steps of the user's own program are read (docs/reading.md)."""

    preset: str | None = None
    """Lines of a known trainer."""
    pattern: str | None = None
    """Regular expression of a line; groups such as ``step`` and ``step_ms`` say what it reads."""
    json_key: str | None = None
    """Instead: the key of the duration in JSON lines, dots lead into inner tables."""
    unit: Literal["step_s", "step_ms", "step_us", "steps_per_s", "tokens_per_s", "step"] = "step_s"
    """Unit of that key."""
    file: str | None = None
    """Read this file instead of the output: lines or JSON lines; ``{folder}/...`` as in
    `workload.command`; with ``*`` or ``**`` the newest that the program writes.
    """
    skip: str | None = None
    """Regular expression of lines that are no steps, such as those of an evaluation."""
    loss: str | None = None
    """For the loss check: an expression with a group ``loss``, or with `json_key` its key."""

    @model_validator(mode="after")
    def _readable(self) -> ReadSpec:
        if (self.preset, self.pattern, self.json_key).count(None) != 2:
            raise ValueError("exactly one of `preset`, `pattern` and `json_key` must be given")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(
                f"`preset` one of {', '.join(PRESETS)}{close_matches(self.preset, PRESETS)}"
            )
        StepReader(self.rules())
        return self

    @classmethod
    def refuse_bad(cls, rules: Rules) -> None:
        """Raises StudyFileError if rules that are not of a study file are not legal."""
        try:
            cls.model_validate(rules)
        except ValidationError as error:
            problem = first_problem(error)
            raise StudyFileError(f"how steps are read must be legal but: {problem}") from None

    def rules(self) -> Table:
        """The rules as `autotune.child.steps.StepReader` takes them."""
        return self.model_dump(exclude_none=True)


class WorkloadSpec(Section):
    """What runs: a workload that a worker builds, or the user's own program."""

    entry: str | None = None
    """``llama``, ``llama-small`` ... or ``package.module:function`` beside the study file."""
    options: Table = Field(default_factory=dict)
    """Passed to the `entry` (sizes, mesh, batch ...), or values of ``{NAME}`` in a `command`."""
    command: Texts | None = Field(None, min_length=1)
    """Instead of `entry`: a program and its arguments; ``{folder}`` in an argument is an empty
    folder in the run directory, ``{NAME}`` an option.
    """
    hook: bool = False
    """The program has ``autotune.hook.steps`` in its loop."""
    folder: Literal["own", "shared"] = "own"
    """``own``: what a process of a `command` writes into the study's folder is thrown away.
    ``shared``: it stays (docs/tune.md).
    """
    read: ReadSpec | None = None
    """How the steps of a program without the hook are read."""
    launcher: str | None = Field(None, pattern=CLASS_PATH.pattern)
    """``module:Class`` that starts trials, installed or beside the study (docs/extending.md)."""
    mesh: dict[Axis, DeviceCount] | None = None
    """All axes over which the program splits its work, with their sizes, see docs/flags.md."""

    tokens_per_step: Product | None = None
    """Tokens of a step: a number, or a product such as ``batch * seq`` (docs/options.md)."""
    python: str | None = Field(None, min_length=1)
    """Interpreter that is asked for its settings; default: the `command`'s first word if that is
    one, else autotune's.
    """

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadSpec:
        if (self.entry is None) == (self.command is None):
            raise ValueError("exactly one of `entry` and `command` must be given")
        if self.entry is not None:
            if self.hook or self.read or self.folder == "shared" or self.python:
                raise ValueError(
                    "`hook`, `read`, `folder` and `python` belong to a `command`; an `entry` needs "
                    "none of them and runs under the interpreter of autotune"
                )
            return self
        for name in sorted(set(self.options) - self.placeholders):
            raise ValueError(
                f"`options` of a `command` stand in its arguments as {{name}}, but {{{name}}} is "
                "nowhere there"
            )
        if self.hook == (self.read is not None):
            raise ValueError("a `command` needs either `hook = true` or a section [workload.read]")
        needs_tokens = self.read is not None and StepReader(self.read.rules()).needs_tokens
        if needs_tokens and self.tokens_per_step is None:
            raise ValueError("`tokens_per_step` must be given where tokens_per_s is read")
        return self

    @property
    def placeholders(self) -> set[str]:
        """Names in braces in the command's arguments."""
        return placeholders(self.command or ())

    @property
    def uses_folder(self) -> bool:
        """Whether the command or the file of its steps names ``{folder}``."""
        if self.read is not None and FOLDER in placeholders([self.read.file or ""]):
            return True
        return FOLDER in self.placeholders

    def arguments(self, folder: str) -> list[str]:
        """The command with its options and the trial's folder in place, see `filled_command`."""
        return filled_command(self.command or (), {**self.options, FOLDER: folder})

    _redacted = field_serializer("options", "command", mode="wrap")(_without_secrets)

    @property
    def shown(self) -> WorkloadSpec:
        """The same with its secrets redacted."""
        return self.model_validate(self.model_dump())

    def command_line(self, searched: Iterable[str] = ()) -> str:
        """Formats the command to run it outside of a study, with places for `searched` options."""
        redacted = self.shown
        if redacted.command is not None:
            return shlex.join(redacted.command)
        command = ["python", "-m", "workloads", str(self.entry)]
        options = {name: json.dumps(value) for name, value in redacted.options.items()}
        options |= {name: f"{{{name}}}" for name in searched}
        for name, value in options.items():
            command += ["--set", f"{name}={value}"]
        return shlex.join(command)

    @property
    def can_wait(self) -> bool:
        """Whether a process of it waits for orders between blocks; others are paused by signals."""
        return self.command is None or self.hook


class DeviceSpec(Section):
    """Where it runs."""

    platform: Literal["cpu", "cuda"] = "cpu"
    """Of all processes."""
    count: DeviceCount | None = None
    """Devices of all nodes together; on CPU virtual ones are made; default: all GPUs, one CPU."""
    process_count: DeviceCount = 1
    """Processes of all nodes that share the devices (`jax.distributed`); 1: one, or one a node."""
    node_count: DeviceCount = 1
    """Machines that one trial spans; more than one needs SLURM, see docs/cluster.md."""
    nic_bytes_per_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Bytes/s that each GPU can send to other machines, for predictions; default: as in `autotune
    targets list`. Google's A3 has 12.5e9, A3 Mega 25e9, NVIDIA's DGX H100 50e9.
    """

    @model_validator(mode="after")
    def _divides(self) -> DeviceSpec:
        if self.process_count > 1 and self.process_count % self.node_count:
            raise ValueError(
                "`process_count` must be a multiple of `node_count` (the same number on each "
                f"node) but got {self.process_count} and {self.node_count}"
            )
        if self.count is not None and self.count % self.rank_count:
            raise ValueError(
                f"`count` must be a multiple of `process_count` but got {self.count} and "
                f"{self.rank_count}"
            )
        if self.process_count > 1 and self.count is None:
            raise ValueError("`count` must be given with `process_count`, to share out the devices")
        return self

    @property
    def rank_count(self) -> int:
        """Processes that a trial really has: at least one on each node."""
        return max(self.process_count, self.node_count)


class ScreenSpec(Section):
    """What is compiled before anything is measured."""

    enabled: bool | Literal["auto"] = "auto"
    """``auto`` screens studies on GPUs whose workload is an `entry`, with XLA's CUDA plugin."""
    target: str | None = None
    """GPU to compile for (`autotune targets list`, or a .toml file); default: what runs."""
    topology: str | None = Field(None, pattern=r"^(\d{1,5}x)?\d{1,3}$")
    """Nodes x GPUs on each, such as ``8x8``; default: what runs."""


class MeasureSpec(Section):
    """How a comparison is measured."""

    min_effect: float = Field(0.005, gt=0, lt=0.5)
    """Smallest effect of interest, as a share of step time (0.005 is 0.5 %)."""
    pairs_cap: int = Field(40, ge=6, le=1000)
    """Most pairs of blocks of a trial. The A/A run starts two processes and one more for every 20
    of them; a trial in ABA runs has one run for every 13.
    """
    block_s: Seconds | Literal["auto"] = "auto"
    """Shortest counted part of a block, seconds; ``auto``: 0.05, and on GPUs 2."""
    start_limit_s: Seconds | None = None
    """Longest time from process start to readiness; defaults of both limits: docs/budgets.md."""
    block_limit_s: Seconds | None = None
    """Time until a block counts as hung."""
    mode: Literal["auto", "interleaved", "aba"] = "auto"
    """``interleaved``: two resident processes alternate block by block (docs/tune.md). ``aba``:
    fresh runs one at a time. ``auto``: interleaved where the program can and two fit in memory.
    """
    run_steps: int = Field(20, ge=1, le=100_000)
    """Steps that are measured in each fresh run of an ABA run."""

    @property
    def aba_runs(self) -> int:
        """ABA runs of a trial."""
        return max(2, round(3 * self.pairs_cap / 40))

    @property
    def aa_processes(self) -> int:
        """Processes of the reference that the A/A run starts beside the living one, interleaved."""
        return 2 + self.pairs_cap // 20


class ConfirmSpec(Section):
    """How finalists are proven."""

    finalists: int = Field(3, ge=1, le=20)
    """Number of the best trials that are measured again."""
    processes: int = Field(40, ge=3, le=1000)
    """Most fresh pairs of processes to settle a finalist; a larger number continues a study."""
    minimise: bool = True
    """Drop each setting that does not pay for itself."""
    isolated: int = Field(40, ge=0, le=1000)
    """Most isolated runs of each arm, which must show that a proven set is faster; 0 for none."""
    soak: SoakSeconds = 60.0
    """Seconds of steps that the winner must run without a fault; exports say if it is 0."""
    soaks: int = Field(SOAK_LOOKS, ge=1, le=MOST_LOOKS)
    """Most long runs of each arm, each as long as `soak`, until they show that the gain stays."""
    loss_tolerance: float = Field(0.02, gt=0, lt=1)
    """Share by which a winner of another dtype or batch may have a higher loss at equal tokens."""


class LimitsSpec(Section):
    """What a candidate must keep, whatever its speed."""

    memory: Bytes | None = None
    """Most bytes that it may need of each device, compiled or measured: ``"72GiB"``."""


SAMPLERS = {
    "additive": "autotune.search.sampler:AdditiveFlagSampler",
    "tpe": "autotune.study.samplers:PinnedTpe",
    "random": "optuna.samplers:RandomSampler",
}

SettingValue = bool | int | float | str
Domain = list[SettingValue] | dict[str, SettingValue]
Values = Annotated[list[Any], Field(min_length=1)]


class NamedSet(Section):
    """A flag set with a name, tried before the sampler proposes."""

    name: str
    """Shown in tables, as ``set NAME``."""
    settings: Settings = Field(default_factory=FlagSet)
    """Setting to value, beside the baseline."""
    options: Table = Field(default_factory=dict)
    """Option of the workload to value."""

    @property
    def whole(self) -> FlagSet:
        """Settings and options as one set."""
        return self.settings.merge(option_sets(self.options))


class SearchSpec(Section):
    """What is searched, how long, and what is tried first."""

    trials: int = Field(30, ge=1, le=100_000)
    """Distinct proposals, failed ones included; recipes and `first` count too."""
    time_budget: Seconds | None = None
    """Seconds for the whole study, over all its sessions; part is kept back for confirming."""
    settings: dict[str, Domain] = Field(default_factory=dict)
    """Setting to its domain: a list of values, or ``{low, high, step, power_of_two}``."""
    options: dict[str, Values] = Field(default_factory=dict)
    """Option of the workload to the values that are tried; the reference has that of
    `workload.options`, else the first. ``process_count`` is that of `device`.
    """
    groups: Texts = ()
    """Groups of the catalogue whose settings are searched."""
    without: Texts = ()
    """Settings that are not searched with their group."""
    recipes: Texts = ()
    """Published sets that are tried first, as far as the installed build has them."""
    first: tuple[NamedSet, ...] = ()
    """Sets with names that are tried before the sampler proposes."""
    sampler: str = "additive"
    """``additive``, ``tpe``, ``random``, or ``module:Class`` of Optuna or own (docs/search.md)."""

    @field_validator("settings")
    @classmethod
    def _names_settings(cls, settings: dict[str, Domain]) -> dict[str, Domain]:
        for name in settings:
            kind_of(name)
        return settings

    @field_validator("options")
    @classmethod
    def _distinct_values(cls, options: Domains) -> Domains:
        for name, values in options.items():
            option_setting(name)
            if len(set(map(option_text, values))) < len(values):
                raise ValueError(f"distinct values of `{name}`")
        return options

    @field_validator("sampler")
    @classmethod
    def _names_a_sampler(cls, sampler: str) -> str:
        if sampler not in SAMPLERS and not CLASS_PATH.fullmatch(sampler):
            raise ValueError(
                f"one of {', '.join(SAMPLERS)}, or a sampler of Optuna as module:Class"
            )
        return sampler
