"""The sections of a study file, each checked on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from autotune.child import PRESETS, StepReader
from autotune.model.descriptions import Described
from autotune.model.errors import StudyFileError, close_matches
from autotune.model.expressions import Expression
from autotune.model.names import is_variable
from autotune.model.options import FOLDER, filled, placeholders
from autotune.model.quantities import DurationOrNone, Seconds, SoakSeconds
from autotune.model.secrets import is_secret_name, strike_command, strike_data
from autotune.model.turn_sizes import AT_ONCE, CPU_SIZES, GPU_SIZES, TurnSizes
from autotune.stats import DEFAULT_PROOF_SIZE, NoiseFloor, proof_size

AXES = ("data", "fsdp", "tensor", "pipeline", "context", "expert")
"""Ways to split a step over devices: axes of `workload.mesh`."""

USES = ("loops", "collective-permute", "several-devices", "several-nodes", *AXES)
"""What a program may be said to have: words of `workload.uses`."""

WITH_SECRETS = {"secrets": True}
"""Context of a dump that keeps the secrets of a workload, for what stays in this process."""


class Section(Described):
    """One table of a study file: a key that it does not have is an error."""


class ReadSpec(Section):
    """How the steps of the user's own program are read from what it prints or writes.

    Named groups of a pattern: one of ``step_s``, ``step_ms``, ``steps_per_s``, ``tokens_per_s`` (without any, the time
    between two matching lines counts), and ``step`` (its number, for lines that do not come at every step).

    Attributes:
        preset: Lines of a known trainer, see `autotune.child.steps.PRESETS`.
        pattern: Regular expression, searched in each line (its first 4,000 characters).
        json_key: Instead: the key of the duration in JSON lines, dots lead into inner tables.
        unit: What that key holds.
        file: Read this file instead of the output: lines, JSON lines or ``.csv``; below the study's folder, or
            ``{folder}/...`` for that of the trial; with ``*``, or of a folder, the newest that the program writes.
        loss: For the correctness gate: an expression with a group ``loss``, or with `json_key` the key of the loss.
        tokens_per_step: Needed for ``tokens_per_s``.
        terminal: Give the program a pseudo-terminal, for one that prints nothing, or all at once, into a pipe.
    """

    preset: str | None = None
    pattern: str | None = None
    json_key: str | None = None
    unit: Literal["step_s", "step_ms", "step_us", "steps_per_s", "tokens_per_s", "step"] = "step_s"
    file: str | None = None
    loss: str | None = None
    tokens_per_step: Annotated[int | None, Field(ge=1)] = None
    terminal: bool = False

    @model_validator(mode="after")
    def _readable(self) -> ReadSpec:
        if sum(x is not None for x in (self.preset, self.pattern, self.json_key)) != 1:
            raise ValueError("exactly one of `preset`, `pattern` and `json_key` must be given")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"`preset` one of {', '.join(PRESETS)}{close_matches(self.preset, PRESETS)}")
        StepReader(self.rules())
        return self

    @classmethod
    def refuse_bad(cls, rules: Mapping[str, Any]) -> None:
        """Checks rules that are not of a study file.

        Raises:
            StudyFileError: If one of them is not legal.
        """
        try:
            cls.model_validate(rules)
        except ValidationError as error:
            said = "; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())
            raise StudyFileError(f"how steps are read must be legal but: {said}") from None

    def rules(self) -> dict[str, Any]:
        """What `autotune.child.steps.StepReader` takes."""
        return self.model_dump(exclude_none=True)


class WorkloadSpec(Section):
    """What runs: a workload that a worker builds, or the user's own program.

    `command` and `options` hold secrets as they are, for the program; dumps have them struck out, so that none is kept,
    and so that none is part of a study's identity.

    Attributes:
        entry: ``llama``, ``llama-small`` ... or ``package.module:function``, found beside the study file.
        options: Passed to the workload as they stand (sizes, mesh, batch, dtype ...); of a `command`, what stands for
            ``{NAME}`` in its arguments and its `environment`.
        command: Instead of `entry`: a program and its arguments, run in the study's folder; ``{folder}`` in an
            argument stands for the folder of the trial, ``{NAME}`` for an option.
        environment: Variables of the `command` that hold options, such as ``BATCH = "{batch}"``.
        hook: The program has ``autotune.hook.steps`` in its loop, so it takes turns and reports by itself.
        read: How the steps of a program without the hook are read.
        mesh: Declares over how many devices the program splits its work, and in which ways: all of them, see `AXES`.
        uses: Declares what the program has, all of it, see `USES`: settings that act on nothing of it are not searched.
        tokens_per_step: What a step does, as an expression over options such as ``batch * seq``; for programs that do
            not tell it themselves, where options are searched that change it.
        unit: What that counts, as shown to users: tables then say ``time per image``.
        python: Interpreter of the `command`, whose packages are asked which settings they have; default: the command
            itself if that is one, else the interpreter of autotune.
    """

    entry: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    hook: bool = False
    read: ReadSpec | None = None
    mesh: dict[str, Annotated[int, Field(ge=1)]] | None = None
    uses: tuple[str, ...] | None = None

    @field_validator("mesh", "uses")
    @classmethod
    def _is_known(cls, declared: Any, info: ValidationInfo) -> Any:
        legal = AXES if info.field_name == "mesh" else USES
        for word in declared or ():
            if word not in legal:
                raise ValueError(f"of {', '.join(legal)} but got {word!r}{close_matches(word, legal)}")
        return declared

    tokens_per_step: (
        Annotated[
            str,
            BeforeValidator(lambda v: str(v) if type(v) is int else v),
            WithJsonSchema({"type": ["string", "integer"]}, mode="validation"),
        ]
        | None
    ) = None
    unit: Annotated[str, Field(pattern=r"^[a-z][a-z -]{0,30}$")] = "token"
    python: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("tokens_per_step")
    @classmethod
    def _is_a_sum(cls, text: str | None) -> str | None:
        if text is not None:
            Expression(text)
        return text

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadSpec:
        if (self.entry is None) == (self.command is None):
            raise ValueError("exactly one of `entry` and `command` must be given")
        if self.entry is not None and (self.hook or self.read is not None):
            raise ValueError("`hook` and `read` belong to a `command`, an `entry` needs neither")
        if self.entry is not None and self.python is not None:
            raise ValueError("`python` belongs to a `command`; an `entry` runs under the interpreter of autotune")
        if self.entry is not None and self.environment:
            raise ValueError("`environment` belongs to a `command`; an `entry` takes its `options` as they are")
        if self.command is not None:
            if unused := sorted(set(self.options) - self.placeholders):
                raise ValueError(
                    f"`options` of a `command` stand in its arguments or its `environment` as {{name}}, but "
                    f"{{{unused[0]}}} is nowhere there"
                )
            if self.hook == (self.read is not None):
                raise ValueError("a `command` needs either `hook = true` or a section [workload.read]")
        return self

    @field_validator("environment")
    @classmethod
    def _own_variables(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if not name.isidentifier() or not name.isascii():
                raise ValueError(f"names of variables, such as BATCH, not {name!r:.100}")
            if name == "XLA_FLAGS" or is_variable(name):
                raise ValueError(f"variables of the program's own; {name} is a setting: [baseline], or search.settings")
            if is_secret_name(name):
                raise ValueError(f"no secret, for it is recorded; set {name} in the environment of your call instead")
        return environment

    @property
    def placeholders(self) -> set[str]:
        """Names in braces in the command's arguments and its variables."""
        return placeholders((*(self.command or ()), *self.environment.values()))

    def arguments(self, folder: str) -> list[str]:
        """The command with its options in place, and the folder of the trial."""
        return [filled(part, {**self.options, FOLDER: folder}) for part in self.command or ()]

    @property
    def variables(self) -> dict[str, str]:
        """The command's own variables with its options in place."""
        return {name: filled(value, self.options) for name, value in self.environment.items()}

    @field_serializer("options", "command", "environment", mode="wrap")
    def _without_secrets(self, value: Any, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        if value is None or (info.context or {}).get("secrets"):
            return dump(value)
        return dump(strike_data(value) if isinstance(value, dict) else strike_command(value))

    @property
    def shown(self) -> WorkloadSpec:
        """The same with its secrets struck out, to be looked at and handed on."""
        command = None if self.command is None else strike_command(self.command)
        struck = {"options": strike_data(self.options), "environment": strike_data(self.environment)}
        return self.model_copy(update={**struck, "command": command})

    @property
    def takes_turns(self) -> bool:
        """Whether a process of it can wait while another one is measured."""
        return self.command is None or self.hook


class DeviceSpec(Section):
    """Where it runs.

    Attributes:
        platform: ``cpu`` or ``cuda``.
        count: Devices for the workload; on CPU that many virtual ones are made. Default: all GPUs, one CPU.
            Of several nodes: all of them together.
        process_count: Processes that share the devices through `jax.distributed`; 1 is one process for all. Of several
            nodes: all of them together, the same number on each; 1 is one for each node.
        node_count: Machines that one trial spans; more than one needs SLURM, see docs/cluster.md.
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


class ScreenSpec(Section):
    """What is compiled before anything is measured.

    Attributes:
        enabled: ``auto`` screens studies on GPUs whose workload is an `entry`, if XLA's CUDA plugin is there.
        target: The GPU to compile for (`autotune targets list`, or a .txtpb file); default: the kind that runs.
        topology: Nodes x GPUs on each, such as ``8x8``; default: what runs.
        cache: Take from and add to the cache of compiled programs.
        time_budget: Longest time for the screen; default: a quarter of the study's, if that has one.
        compile_limit: Longest time for one compilation; default: eight times the processor time that the reference's
            took, at least 1 minute of it, and at most four times as long by the clock.
    """

    enabled: bool | Literal["auto"] = "auto"
    target: str | None = None
    topology: Annotated[str, Field(pattern=r"^(\d{1,5}x)?\d{1,3}$")] | None = None
    cache: bool = True
    time_budget: Seconds | None = None
    compile_limit: Seconds | None = None


class MeasureSpec(Section):
    """How a comparison is measured.

    Attributes:
        smallest_effect: Smallest effect of interest, as a share of step time (0.005 is 0.5 %).
        pairs_cap: Pairs of blocks after which a trial ends in any case.
        block_s: Shortest counted part of a block, seconds, which has at least `block_steps` steps; ``auto``: 0.05, and
            on GPUs, whose clocks follow power, 2 (`autotune.model.turn_sizes`).
        block_steps: Fewest counted steps of a block.
        settle_s: Steps of a block that begin within its first so many seconds are kept raw and not counted; ``auto``:
            none, and on GPUs those of 3 s.
        steady_s: Likewise of a run alone, where the program takes turns; ``auto``: none, and on GPUs 10 s.
        warmup_steps: Steps that are run before the first block and never used.
        check_steps: First steps whose loss and gradient norm are compared with the reference's.
        start_limit_s: Longest time from process start to readiness (import, compilation, warm-up); default: four times
            what the reference took, at least 2 minutes, and 10 minutes for the reference itself.
        block_limit_s: Longest time for one block; past it the worker counts as hung. Default: ten times the
            reference's steps, at least 2 minutes.
        log_bytes: Most that is kept of a worker's output (half from its start, half from its end).
        mode: ``turns``: two processes are resident and run blocks in pairs. ``sandwich``: one at a time, in fresh
            runs reference, candidate, reference. ``auto``: turns where the program can and the memory holds two.
        run_steps: Steps that are measured in each fresh run of a sandwich.
        sandwiches: How many sandwiches a trial has.
        floor_processes: How many processes of the reference the noise floor starts beside the living one, in turns.
    """

    smallest_effect: Annotated[float, Field(gt=0, lt=0.5)] = 0.005
    pairs_cap: Annotated[int, Field(ge=6, le=1000)] = 40
    block_s: Seconds | Literal["auto"] = "auto"
    block_steps: Annotated[int, Field(ge=1, le=1000)] = 3
    settle_s: DurationOrNone | Literal["auto"] = "auto"
    steady_s: DurationOrNone | Literal["auto"] = "auto"
    warmup_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    check_steps: Annotated[int, Field(ge=1, le=100)] = 5
    start_limit_s: Seconds | None = None
    block_limit_s: Seconds | None = None
    log_bytes: Annotated[int, Field(ge=4096)] = 4_000_000
    mode: Literal["auto", "turns", "sandwich"] = "auto"
    run_steps: Annotated[int, Field(ge=1, le=100_000)] = 20
    sandwiches: Annotated[int, Field(ge=2, le=50)] = 3
    floor_processes: Annotated[int, Field(ge=2, le=50)] = 4

    def turns_on(self, platform: str, *, takes_turns: bool = True) -> TurnSizes:
        """Sizes of blocks and of runs alone on a platform, with what "auto" stands for there.

        Args:
            platform: ``cpu`` or ``cuda``.
            takes_turns: Whether the program waits for its turns; of one that runs by itself nothing is left out but
                its warm-up, for it may end.
        """
        usual = GPU_SIZES if platform == "cuda" else CPU_SIZES
        told = {n: getattr(self, n) for n in ("block_s", "settle_s", "steady_s")}
        sizes = {**usual, **{n: value for n, value in told.items() if value != "auto"}}
        if not takes_turns:
            sizes["steady_s"] = 0.0
        return TurnSizes(block_steps=self.block_steps, **sizes)


class ConfirmSpec(Section):
    """How finalists prove themselves.

    Attributes:
        finalists: How many of the best trials are measured again.
        processes: Most fresh pairs of processes for each finalist, and again for the minimal set; a proof ends as soon
            as it is settled. It may be raised later: the same command then goes on.
        minimise: Drop each setting that does not pay for itself.
        pairs: Pairs of blocks in each pair of processes; ``auto``: as many as the noise floor makes best, see
            `autotune.stats.proof_size`.
        soak: Seconds of steps that the winner must run without a fault; 0 leaves that out, and exports say so.
        soak_steps: Fewest steps of that run.
        alone: Most runs of each arm with nothing beside it, by which a set that was proven in turns is checked: as many
            as are needed, at least 4. 0 leaves them out.
        loss_tolerance: Share by which the loss of a winner with another dtype or batch may be above the reference's
            after the same tokens.
    """

    finalists: Annotated[int, Field(ge=1, le=20)] = 3
    processes: Annotated[int, Field(ge=3, le=1000)] = 20
    pairs: Annotated[int, Field(ge=4, le=1000)] | Literal["auto"] = "auto"
    minimise: bool = True
    alone: Annotated[int, Field(ge=0, le=1000)] = 12
    soak: SoakSeconds = 60.0
    soak_steps: Annotated[int, Field(ge=0, le=10_000_000)] = 200
    loss_tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02

    def pairs_after(self, floor: NoiseFloor | None, *, starts: float = AT_ONCE) -> int:
        """Pairs of blocks in each pair of processes, once the noise floor is known.

        Args:
            floor: It, or None.
            starts: Starts' worth of seconds that a pair of processes takes to start.
        """
        if self.pairs != "auto":
            return self.pairs
        return proof_size(floor, starts=starts) if floor is not None else DEFAULT_PROOF_SIZE


class PgleSpec(Section):
    """Profile guided latency estimation: the winner compiled again with what its instructions took.

    Attributes:
        enabled: ``auto`` profiles the winner-to-be of an `entry` on several GPUs; ``true`` on one, too.
        steps: Steps that are profiled.
    """

    enabled: bool | Literal["auto"] = "auto"
    steps: Annotated[int, Field(ge=1, le=100)] = 5
