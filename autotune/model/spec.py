"""The study file: TOML in, a checked `StudySpec` out, before anything starts.

Errors name the file, the key, what was got, what is legal, and close matches of a misspelt key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from autotune.child import PRESETS, StepReader
from autotune.model.errors import StudyFileError, close_matches
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, Objective, Settings
from autotune.model.units import parse_duration
from autotune.stats import NOISE_MODELS, NoiseModel

Seconds = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(lambda v: v, return_type=float)]
SettingValue = bool | int | float | str
Domain = list[SettingValue] | dict[str, SettingValue | list[SettingValue]]


def _duration_or_none(value: str | float) -> float:
    """Seconds of a duration that may be 0, for none."""
    return 0.0 if value in (0, "0", "0s") else parse_duration(value)


class Effort(StrEnum):
    """How much measuring a study may spend; scales the caps of `[measure]` and `[confirm]`."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReadSpec(_Section):
    """How the steps of the user's own program are read from what it prints or writes.

    Named groups of a pattern: one of ``step_s``, ``step_ms``, ``steps_per_s``, ``tokens_per_s`` (without any, the time
    between two matching lines counts), and ``step`` (its number, for lines that do not come at every step).

    Attributes:
        preset: Lines of a known trainer, see `autotune.child.read_rules.PRESETS`.
        pattern: Regular expression, searched in each line (its first 4,000 characters).
        json_key: Instead: the key of the duration in JSON lines, dots lead into inner tables.
        unit: What that key holds.
        file: Read this file, below the study's folder, instead of the program's output.
        loss: For the correctness gate: an expression with a group ``loss``, or with `json_key` the key of the loss.
        tokens_per_step: Needed for ``tokens_per_s``.
    """

    preset: str | None = None
    pattern: str | None = None
    json_key: str | None = None
    unit: Literal["step_s", "step_ms", "steps_per_s", "tokens_per_s"] = "step_s"
    file: str | None = None
    loss: str | None = None
    tokens_per_step: Annotated[int | None, Field(ge=1)] = None

    @model_validator(mode="after")
    def _readable(self) -> ReadSpec:
        if sum(x is not None for x in (self.preset, self.pattern, self.json_key)) != 1:
            raise ValueError("exactly one of `preset`, `pattern` and `json_key` must be given")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"`preset` one of {', '.join(PRESETS)}{close_matches(self.preset, PRESETS)}")
        StepReader(self.rules())
        return self

    def rules(self) -> dict[str, Any]:
        """What `autotune.child.read_rules.StepReader` takes."""
        return self.model_dump(exclude_none=True)


class WorkloadSpec(_Section):
    """What runs: a workload that a worker builds, or the user's own program.

    Attributes:
        entry: ``llama``, ``llama-small`` ... or ``package.module:function``, found beside the study file.
        options: Passed to the workload as they stand (sizes, mesh, batch, dtype ...).
        command: Instead of `entry`: a program and its arguments, run in the study's folder; ``{folder}`` in an
            argument stands for the folder of the trial.
        hook: The program has ``autotune.hook.steps`` in its loop, so it takes turns and reports by itself.
        read: How the steps of a program without the hook are read.
    """

    entry: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    hook: bool = False
    read: ReadSpec | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadSpec:
        if (self.entry is None) == (self.command is None):
            raise ValueError("exactly one of `entry` and `command` must be given")
        if self.entry is not None and (self.hook or self.read is not None):
            raise ValueError("`hook` and `read` belong to a `command`, an `entry` needs neither")
        if self.command is not None:
            if self.options:
                raise ValueError("`options` belong to an `entry`; give a program its own as arguments of `command`")
            if self.hook == (self.read is not None):
                raise ValueError("a `command` needs either `hook = true` or a section [workload.read]")
        return self

    @property
    def takes_turns(self) -> bool:
        """Whether a process of it can wait while another one is measured."""
        return self.command is None or self.hook


class DeviceSpec(_Section):
    """Where it runs.

    Attributes:
        platform: ``cpu`` or ``cuda``.
        count: Devices for the workload; on CPU that many virtual ones are made. Default: all GPUs, one CPU.
            Of several nodes: all of them together.
        process_count: Processes that share the devices through `jax.distributed`; 1 is one process for all. Of several
            nodes: all of them together, the same number on each; 1 is one for each node.
        node_count: Machines that one trial spans; more than one needs SLURM or Kubernetes, see docs/cluster.md.
    """

    platform: Literal["cpu", "cuda"] = "cpu"
    count: Annotated[int, Field(ge=1, le=4096)] | None = None
    process_count: Annotated[int, Field(ge=1, le=4096)] = 1
    node_count: Annotated[int, Field(ge=1, le=1024)] = 1

    @model_validator(mode="after")
    def _divides(self) -> DeviceSpec:
        if self.process_count > 1 and self.process_count % self.node_count:
            raise ValueError(
                f"`process_count` must be a multiple of `node_count` (the same number on each node) but got "
                f"{self.process_count} and {self.node_count}"
            )
        if self.count is not None and self.count % self.rank_count:
            raise ValueError(
                f"`count` must be a multiple of `process_count` but got {self.count} and {self.rank_count}"
            )
        if self.process_count > 1 and self.count is None:
            raise ValueError("`count` must be given with `process_count`, to share out the devices")
        return self

    @property
    def rank_count(self) -> int:
        """Processes that a trial really has: at least one on each node."""
        return max(self.process_count, self.node_count)


class NamedSet(_Section):
    """A flag set with a name, tried before the sampler proposes."""

    name: str
    settings: Settings


class SearchSpec(_Section):
    """What is searched, how long, and what is tried first.

    Attributes:
        trials: Distinct proposals, failed ones included; recipes and `first` count too.
        time_budget_s: Seconds for the whole study, over all its sessions; part is kept back for confirming.
        settings: Setting to its domain: a list of values, or ``{low, high, log, power_of_two, step}``.
        groups: Groups of the catalogue whose settings are searched.
        recipes: Published sets that are tried first, each filtered to what the installed build has.
        symptoms: Symptoms whose groups are searched.
        known_failures: Leave out combinations that crashed or hung in earlier studies on this build and device.
        use_environment: Try the settings of the caller's own environment (XLA_FLAGS ...) first.
        step_time: ``measured``, or ``predicted`` of compiled programs: no GPU is needed, nothing is
            measured and nothing proven.
        objectives: What is made small; with more than one the study ends in a front of proven sets, not in a winner.
    """

    trials: Annotated[int, Field(ge=1, le=100_000)] = 30
    time_budget: Seconds | None = None
    settings: dict[str, Domain] = Field(default_factory=dict)
    groups: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    first: tuple[NamedSet, ...] = ()
    use_environment: bool = True
    step_time: Literal["measured", "predicted"] = "measured"
    sampler: Literal["tpe", "random"] = "tpe"
    startup_trials: Annotated[int, Field(ge=1)] = 8
    known_failures: bool = True
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)] = (Objective.STEP_TIME,)

    @field_validator("objectives")
    @classmethod
    def _each_once(cls, objectives: tuple[Objective, ...]) -> tuple[Objective, ...]:
        if Objective.STEP_TIME not in objectives or len(set(objectives)) < len(objectives):
            raise ValueError("each named once, and `step_time` among them: every set is proven by it")
        return objectives


class ScreenSpec(_Section):
    """What is compiled before anything is measured.

    Attributes:
        enabled: ``auto`` screens studies on GPUs whose workload is an `entry`, if XLA's CUDA plugin is there.
        target: The GPU to compile for (`autotune targets list`, or a .txtpb file); default: the kind that runs.
        topology: Nodes x GPUs on each, such as ``8x8``; default: what runs.
        cache: Take from and add to the cache of compiled programs.
        time_budget: Longest time for the screen; default: a quarter of the study's, if that has one.
        compile_limit: Longest time for one compilation.
    """

    enabled: bool | Literal["auto"] = "auto"
    target: str | None = None
    topology: Annotated[str, Field(pattern=r"^(\d{1,5}x)?\d{1,3}$")] | None = None
    cache: bool = True
    time_budget: Seconds | None = None
    compile_limit: Seconds = 900.0


class MeasureSpec(_Section):
    """How a comparison is measured.

    Attributes:
        smallest_effect: Smallest effect of interest, as a share of step time (0.005 is 0.5 %).
        pairs_cap: Pairs of blocks after which a trial ends unresolved.
        block_s: Shortest block, seconds; a block has at least `block_steps` steps.
        warmup_steps: Steps that are run before the first block and never used.
        check_steps: First steps whose loss and gradient norm are compared with the reference's.
        start_limit_s: Longest time from process start to readiness (import, compilation, warm-up).
        block_limit_s: Longest time for one block; past it the worker counts as hung.
        log_bytes: Most that is kept of a worker's output (half from its start, half from its end).
        mode: ``turns``: two processes are resident and run blocks in pairs. ``sandwich``: one at a time, in fresh
            runs reference, candidate, reference. ``auto``: turns where the program can and the memory holds two.
        run_steps: Steps that are measured in each fresh run of a sandwich.
        sandwiches: How many sandwiches a trial has.
    """

    smallest_effect: Annotated[float, Field(gt=0, lt=0.5)] = 0.005
    pairs_cap: Annotated[int, Field(ge=6, le=1000)] = 40
    block_s: Seconds = 0.05
    block_steps: Annotated[int, Field(ge=1, le=1000)] = 3
    warmup_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    check_steps: Annotated[int, Field(ge=1, le=100)] = 5
    start_limit_s: Seconds = 600.0
    block_limit_s: Seconds = 120.0
    log_bytes: Annotated[int, Field(ge=4096)] = 4_000_000
    mode: Literal["auto", "turns", "sandwich"] = "auto"
    run_steps: Annotated[int, Field(ge=1, le=100_000)] = 20
    sandwiches: Annotated[int, Field(ge=2, le=50)] = 3


class ConfirmSpec(_Section):
    """How finalists prove themselves.

    Attributes:
        finalists: How many of the best trials are measured again.
        processes: Fresh pairs of processes for each finalist, and again for the minimal set.
        minimise: Drop each setting that does not pay for itself.
        pairs: Pairs of blocks in each pair of processes.
        soak: Seconds of steps that the winner must run without a fault; 0 leaves that out, and exports say so.
        soak_steps: Fewest steps of that run.
    """

    finalists: Annotated[int, Field(ge=1, le=20)] = 3
    processes: Annotated[int, Field(ge=3, le=100)] = 5
    pairs: Annotated[int, Field(ge=4, le=1000)] = 20
    minimise: bool = True
    soak: Annotated[float, BeforeValidator(_duration_or_none)] = 60.0
    soak_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 200


class ReplaySpec(_Section):
    """A formula that stands in for the machine: for tests, and to try how a study's search and proof behave.

    Attributes:
        step_s: Step time of the reference, seconds.
        effects: ``"name=value"`` to the factor by which it multiplies the step time.
        memory_effects: Likewise for the peak memory.
        compile_effects: Likewise for the compile time.
        failures: ``"name=value"`` to the failure it causes, or several of them with spaces between: all together.
        inert: ``"name=value"`` entries that change nothing in the program.
        noise: A named noise model of `autotune.stats.estimates.simulate`, or a table of its parameters.
        delay_s: Real seconds that each start and each block take, so that a stop in mid-study can be tried.
    """

    step_s: Annotated[float, Field(gt=0)] = 0.03
    effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    memory_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    compile_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    failures: dict[str, FailureKind] = Field(default_factory=dict)
    inert: tuple[str, ...] = ()
    noise: str | dict[str, float] = "quiet"
    delay_s: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("noise")
    @classmethod
    def _known(cls, noise: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(noise, str):
            if noise not in NOISE_MODELS:
                raise ValueError(f"one of {', '.join(NOISE_MODELS)}{close_matches(noise, NOISE_MODELS)}")
        else:
            legal = [f.name for f in dataclasses.fields(NoiseModel)]
            for name in noise:
                if name not in legal:
                    raise ValueError(f"parameters of a noise model ({', '.join(legal)}), not `{name}`")
        return noise


class StudySpec(_Section):
    """A whole study, checked. Equal `identity` means results may share a run directory."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    workload: WorkloadSpec
    device: DeviceSpec = DeviceSpec()
    baseline: Settings = Field(default_factory=FlagSet)
    search: SearchSpec = SearchSpec()
    screen: ScreenSpec = ScreenSpec()
    measure: MeasureSpec = MeasureSpec()
    confirm: ConfirmSpec = ConfirmSpec()
    replay: ReplaySpec | None = None

    @field_validator("name")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if ".." in name:
            raise ValueError("must not hold `..`")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> StudySpec:
        if self.measure.mode == "turns" and not self.workload.takes_turns:
            raise ValueError(
                'a `command` without the hook can not wait for its turn: `measure.mode` must be "auto" or "sandwich"'
            )
        if self.is_predicted and len(self.search.objectives) > 1:
            raise ValueError(
                '`search.step_time = "predicted"` is of step time alone: give no other `search.objectives`'
            )
        told = {Objective.STEP_TIME, Objective.ENERGY, *((Objective.MEMORY,) if self.workload.hook else ())}
        if self.workload.command is not None and (untold := set(self.search.objectives) - told):
            raise ValueError(f"`search.objectives` can not hold {', '.join(untold)}: a `command` does not tell it")
        if self.workload.command is not None and self.device.process_count > 1:
            raise ValueError("`device.process_count` is of an `entry`; a `command` starts its own processes")
        if self.is_predicted and (self.workload.entry is None or self.replay is not None):
            raise ValueError('`search.step_time = "predicted"` needs a `workload.entry` to compile, and no [replay]')
        return self

    @property
    def is_predicted(self) -> bool:
        """Whether nothing is measured: a model says what compiled programs would take."""
        return self.search.step_time == "predicted"

    @property
    def workload_hash(self) -> str:
        """Names what is measured: workload, its options, devices and processes; flags play no part."""
        return _digest({"workload": self.workload.model_dump(), "device": self.device.model_dump()})

    @property
    def identity(self) -> str:
        """Names what must not change when a study is resumed; see `lasting`."""
        return _digest(self.lasting())

    def lasting(self) -> dict[str, Any]:
        """The study without what may change on resume: budgets, how finalists are proven, what is only shown."""
        data = self.model_dump(mode="json")
        for key in ("name", "description", "confirm"):
            data.pop(key)
        for key in ("trials", "time_budget"):
            data["search"].pop(key)
        # Keys that are younger than the first runs count only where they are used, so that those runs go on.
        if data["search"]["objectives"] == [Objective.STEP_TIME]:
            data["search"].pop("objectives")
        if data["search"]["known_failures"]:
            data["search"].pop("known_failures")
        screen = data.pop("screen")
        if self.is_predicted:  # then the cluster is what the results are of
            data["screen"] = {key: screen[key] for key in ("target", "topology")}
        else:
            data["search"].pop("step_time")  # so that older runs keep their identity
        if data["replay"] is not None:
            data["replay"].pop("delay_s")
            for key in ("memory_effects", "compile_effects"):
                if not data["replay"][key]:
                    data["replay"].pop(key)
        return data

    def at_effort(self, effort: Effort) -> StudySpec:
        """The same study with its measuring scaled: `quick` about halves it, `full` doubles it and soaks for longer."""
        if effort is Effort.STANDARD:
            return self
        factor = 0.5 if effort is Effort.QUICK else 2.0
        measure = self.measure.model_copy(
            update={
                "pairs_cap": max(12, round(self.measure.pairs_cap * factor)),
                "sandwiches": max(2, round(self.measure.sandwiches * factor)),
            },
        )
        confirm = self.confirm.model_copy(
            update={
                "finalists": max(1, min(20, round(self.confirm.finalists * factor))),
                "processes": max(4, round(self.confirm.processes * factor)),
                "soak": self.confirm.soak * (0.25 if effort is Effort.QUICK else 10.0),
            }
        )
        return self.model_copy(update={"measure": measure, "confirm": confirm})


def load_study(path: Path) -> StudySpec:
    """Reads and checks a study file.

    Raises:
        StudyFileError: If the file is missing, is not TOML, or a key or value is not legal; the message names
            the file and every offending key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = close_matches(path.name, beside)
        raise StudyFileError(f"the study file must exist but there is no {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(f"the study file must be readable UTF-8 text but {path}: {error}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyFileError(f"{path} must be TOML but: {error}") from error
    return parse_study(data, source=str(path))


def parse_study(data: dict[str, Any], *, source: str = "study") -> StudySpec:
    """Checks a study given as plain data; `source` names it in messages.

    Raises:
        StudyFileError: If a key or value is not legal.
    """
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        lines = [_explain(e, data) for e in error.errors()]
        raise StudyFileError(f"{source} is not a legal study:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _explain(error: Any, data: dict[str, Any]) -> str:
    """One line for one error of pydantic: the key as written in TOML, what was got, what is legal."""
    location = [p for p in error["loc"] if not (isinstance(p, str) and p.startswith(("list[", "dict[", "function")))]
    key = ".".join(str(p) for p in location)
    if error["type"] == "extra_forbidden":
        legal = _legal_keys(location[:-1])
        return f"`{key}` is not a key of a study{close_matches(str(location[-1]), legal)} (legal: {', '.join(legal)})"
    if error["type"] == "missing":
        return f"`{key}` must be given; see studies/quickstart.toml for an example"
    got = error.get("input")
    shown = "" if isinstance(got, dict) and len(got) > 3 else f" but got {got!r}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not location:  # of the study as a whole; such a message names its keys itself
        return str(message)
    return f"`{key}` must be: {message}{'' if 'but got' in message else shown}"


def _legal_keys(location: list[Any]) -> list[str]:
    """Names of the keys that the section at a location may have."""
    model: Any = StudySpec
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return sorted(model.model_fields)


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
