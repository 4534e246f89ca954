"""A proven winner as one record: settings, evidence, and the conditions of the proof.

Every exported file holds this record in one comment line, so that `verify` and `exec` can compare it with this machine
and with the records of its run.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from autotune.child.packages import versions_in
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import visible_gpus
from autotune.machine.host import RanOn, cuda_plugin, describe_machine, would_run_on
from autotune.model.errors import AutotuneError, RunDirectoryError, SettingError
from autotune.model.flags import FlagSet, refuse_reaching_out
from autotune.model.measurement import (
    LOSS_NOT_CHECKED,
    NOT_TOLD,
    GpuState,
    LossBasis,
    LossCheck,
    Settings,
    WorkerReport,
    WorkPerStep,
)
from autotune.model.numbers import AtLeastOne, Count, Elapsed, Record
from autotune.model.options import options_in, plain
from autotune.model.records import (
    AaRecord,
    AnyRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    SoakRecord,
)
from autotune.model.redaction import visible_line
from autotune.model.spec import STUDY_NAME, StudySpec
from autotune.model.units import format_change, format_seconds
from autotune.results.format import format_estimate, format_soak, time_of
from autotune.results.recompute import PROOFS, disagreements, evidence_of
from autotune.rundir.store import Store
from autotune.stats.estimates import Estimate

WINNER_VERSION = 2

RUNS = "runs"
"""Folder of run directories."""


# ---------------------------------------------------------------------- conditions of a proof


class Conditions(Record):
    """Machine and versions of a proof, which `verify` compares; None if unknown.

    Attributes:
        device_kind: JAX's name of the device, such as ``NVIDIA H200``.
        device_count: Devices of one node that the workload uses.
        devices_asked: Devices of a node that the study asks for; None for all.
        plugin: CUDA plugin with its version, such as ``jax-cuda12-plugin 0.10.2``.
        driver: Version of the NVIDIA driver, like cuBLAS, cuDNN and NCCL that of the measured process.
        vbios: Firmware of the boards; different values of several GPUs are joined, here and below.
        gsp: Firmware of the GPU system processors.
        clocks: Highest and set clocks of multiprocessors and memory.
        modes: Persistence, MIG and ECC.
        cpu: Known, like `cpus_usable`, only if the workload ran on the CPU.
        workload: `StudySpec.workload_hash`.
        packages: Folder of the jaxlib of a user's own program; not compared, but its versions are.
    """

    platform: str
    device_kind: str | None = None
    device_count: Count | None = None
    devices_asked: Count | None = None
    jax: str | None = None
    jaxlib: str | None = None
    plugin: str | None = None
    driver: str | None = None
    cublas: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    vbios: str | None = None
    gsp: str | None = None
    clocks: str | None = None
    power_limit: str | None = None
    modes: str | None = None
    cpu: str | None = None
    cpus_usable: Count | None = None
    workload: str | None = None
    packages: str | None = None

    @property
    def gpu(self) -> str:
        """Name of the device, or of the CPU if the workload ran on it."""
        if self.platform == "cpu" and self.device_kind == "cpu":
            return self.cpu or "unknown CPU"
        return str(self.device_kind)


class Difference(Record):
    """One condition that differs from the proof."""

    field: str
    proven: str
    here: str

    def __str__(self) -> str:
        return f"{self.field}: proven with {self.proven}, here {self.here}"


def versions_of(report: WorkerReport | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of the measured process, completed by the driver's unless it has its own interpreter."""
    driver: Mapping[str, str] = facts.get("versions", {})
    if report is None or report.packages is None:
        return {**driver, **(report.versions if report else {})}
    return {**{name: driver[name] for name in ("optuna",) if name in driver}, **report.versions}


def conditions_of(spec: StudySpec, aa_run: AaRecord | None, facts: dict[str, Any]) -> Conditions:
    """Returns the conditions of a run from its reference and provenance."""
    report = aa_run.reference if aa_run is not None else None
    # The measured process goes first: autotune itself may run on another machine with other libraries.
    versions = versions_of(report, facts)
    if "driver" not in versions and facts.get("driver"):
        versions["driver"] = str(facts["driver"])
    on_cpu = spec.device.platform == "cpu"
    asked = spec.device.count
    return Conditions(
        platform=spec.device.platform,
        device_kind=report.device_kind if report else None,
        device_count=report.device_count // spec.device.node_count if report else None,
        devices_asked=None if on_cpu or asked is None else asked // spec.device.node_count,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=None if on_cpu else cuda_plugin(versions),
        cpu=facts.get("cpu") if on_cpu else None,
        cpus_usable=facts.get("cpus_usable") if on_cpu else None,
        workload=spec.workload_hash,
        packages=report.packages if report else None,
        **({} if on_cpu else _of_gpus(versions, (report.gpus if report else None) or ())),
    )


def this_machine(*, platform: str, workload: str | None = None, like: Conditions | None = None) -> Conditions:
    """Returns the conditions of this machine without starting JAX.

    Args:
        platform: ``cpu`` or ``cuda``.
        workload: Hash of the workload.
        like: Conditions to compare with: they limit the number of GPUs, and libraries and firmware are looked up
            (seconds) only if these know them.
    """
    facts = describe_machine()
    count = like.devices_asked if like is not None else None
    told = RanOn(versions={}, gpus=())
    if platform == "cuda" and like is not None and any(getattr(like, name) is not None for name in _OF_PROCESS):
        told = would_run_on(caller_environment(), count)
    gpus = [g.name for g in told.gpus if g.name is not None]
    if platform == "cuda" and not gpus:
        gpus = [g.name for g in visible_gpus(caller_environment())[:count]]
    own = like.packages if like is not None else None
    versions = {**(facts["versions"] if own is None else versions_in(own)), **told.versions}
    driver = versions.get("driver") or facts.get("driver") if platform == "cuda" else None
    return Conditions(
        platform=platform if platform == "cpu" or gpus else "cpu",
        device_kind=" and ".join(sorted(set(gpus))) if gpus else "cpu",
        device_count=len(gpus) if platform == "cuda" else None,
        devices_asked=count,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=cuda_plugin(versions),
        cpu=facts["cpu"],
        cpus_usable=facts["cpus_usable"],
        workload=workload,
        packages=own,
        **_of_gpus({**versions, "driver": driver}, told.gpus),
    )


def differences(proven: Conditions, here: Conditions) -> list[Difference]:
    """Lists the conditions in which a machine differs from the proof.

    Conditions that the proof did not record are not compared, nor the workload if `here` names none, nor the count of
    CPU devices, which the workload chooses.
    """
    found = []
    for field in Conditions.model_fields:
        wanted, got = getattr(proven, field), getattr(here, field)
        if field in _NOT_COMPARED or wanted in (None, NOT_TOLD, got) or (field == "workload" and got is None):
            continue
        if field == "device_count" and proven.platform == "cpu":
            continue
        unknown = _SILENT if field in _OF_NVML else "none"
        found.append(Difference(field=field, proven=str(wanted), here=unknown if got is None else str(got)))
    return found


_NOT_COMPARED = ("devices_asked", "packages")
_OF_NVML = ("vbios", "gsp", "clocks", "power_limit", "modes")
_LIBRARIES = ("driver", "cublas", "cudnn", "nccl")
_OF_PROCESS = (*_LIBRARIES, *_OF_NVML)
_SILENT = "not told: NVML must answer (pip install nvidia-ml-py)"


def _of_gpus(versions: Mapping[str, str | None], gpus: Sequence[GpuState]) -> dict[str, str | None]:
    """Returns the conditions of a process's libraries and GPUs."""

    def of_all(words: Callable[[GpuState], str | None]) -> str | None:
        known = [w for gpu in gpus if (w := words(gpu)) is not None]
        return " and ".join(sorted(set(known))) if known else None

    return {
        **{name: versions.get(name) for name in _LIBRARIES},
        "vbios": of_all(lambda gpu: gpu.vbios),
        "gsp": of_all(lambda gpu: gpu.gsp),
        "clocks": of_all(_clocks),
        "power_limit": of_all(lambda gpu: None if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"),
        "modes": of_all(_modes),
    }


def _clocks(gpu: GpuState) -> str | None:
    kinds = {
        "up to": (gpu.max_clock_mhz, gpu.max_memory_clock_mhz),
        "set to": (gpu.application_clock_mhz, gpu.application_memory_clock_mhz),
    }
    words = [f"{word} {own or '?'} / {memory or '?'} MHz" for word, (own, memory) in kinds.items() if own or memory]
    return ", ".join(words) or None


def _modes(gpu: GpuState) -> str | None:
    told = {"persistence": gpu.persistence, "MIG": gpu.mig, "ECC": gpu.ecc}
    return ", ".join(f"{name} {'on' if is_on else 'off'}" for name, is_on in told.items() if is_on is not None) or None


# ---------------------------------------------------------------------- the winner


def refuse_to_hand_on(settings: FlagSet) -> FlagSet:
    """Refuses settings that no winner may hold: those that reach files or code, or are dangerous by the catalogue.

    Raises:
        SettingError: If there is such a setting.
    """
    from autotune.settings.catalog import load_catalog

    refuse_reaching_out(settings)
    catalog = load_catalog()
    for name, value in settings.items():
        entry = catalog.get(name)
        if entry is not None and entry.danger and value not in entry.defaults.values():
            raise SettingError(
                f"a winner must be safe in training but {name}={value} is dangerous ({entry.danger}); "
                "take it out of the study and prove the rest again"
            )
    return settings


HandedOn = Annotated[Settings, AfterValidator(refuse_to_hand_on)]


class Winner(Record):
    """A proven flag set with its evidence and conditions.

    Attributes:
        settings: The whole measured set, baseline and options included.
        baseline: The part of `settings` that the reference had too.
        workload_options: Options of the reference; those in `settings` override them.
        step_s: Median step of the winner in its proof, seconds.
        node_count: Machines that the workload spans.
        soaked_s: Seconds of the soak; None if there was none.
        soak: The soak's result, in words.
        work: Work of a step where it differs from the default's: then `estimate` is of time per `unit`.
        unit: What that counts, in one word.
        loss: How its loss was compared with the default's, or that it was not.
        run: Name of the run directory whose records prove it, without the folder that it lies in.
    """

    winner_version: Annotated[int, Field(ge=WINNER_VERSION, le=WINNER_VERSION)] = WINNER_VERSION
    study: Annotated[str, Field(pattern=STUDY_NAME)]
    ended: str
    settings: HandedOn
    baseline: HandedOn
    estimate: Estimate | None = None
    step_s: Elapsed | None = None
    sentence: str
    workload_entry: str
    workload_options: dict[str, Any]
    process_count: AtLeastOne = 1
    node_count: AtLeastOne = 1
    soaked_s: Elapsed | None = None
    soak: str | None = None
    work: WorkPerStep | None = None
    loss: LossCheck | None = None
    conditions: Conditions
    versions: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    run: str

    @property
    def options(self) -> dict[str, Any]:
        """Options of the workload that are part of this winner, which no variable holds."""
        return options_in(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of this winner, without options of the program."""
        return self.settings.to_environment()


def winner_of(store: Store, *, even_unjudged: bool = False) -> Winner:
    """Returns the winner of a run directory; `even_unjudged` accepts one whose loss could not be judged.

    Raises:
        AutotuneError: If the run is not finished or has no winner, if the conclusion does not follow from its records,
            or if the winner holds refused settings.
    """
    recorded = store.last(ConclusionRecord)
    if recorded is None:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if recorded.outcome is not Outcome.WINNER or not recorded.settings:
        until = "until a study settles that, " if recorded.outcome is Outcome.INCONCLUSIVE else ""
        raise AutotuneError(
            f"only a proven winner is exported but of {store.path}: {recorded.sentence}; {until}"
            "the default settings are what to use here"
        )
    if wrong := disagreements(store, recorded):
        raise AutotuneError(
            f"a proof must follow from the records of its run but in {store.path}\n"
            + "\n".join(f"  - {line}" for line in wrong)
            + "\n  restore the run from a copy, or prove its set again: autotune recheck FILE --study STUDY.toml"
        )
    winner = _winner_at(store, recorded)
    if winner.loss is not None and not (winner.loss.is_ok or winner.loss.is_silent or even_unjudged):
        raise AutotuneError(
            f"a winner must be seen to train as the default does but of {winner.settings}: {winner.loss.words}; "
            "have it soaked (confirm.soak, run the same command again) with a program that reports its loss, or "
            "write it all the same with --force"
        )
    return winner


def _winner_at(store: Store, conclusion: ConclusionRecord) -> Winner:
    """Builds the winner of one recorded conclusion."""
    evidence, settings = evidence_of(store, conclusion), conclusion.settings or FlagSet()
    aa_run = next((r for r in reversed(evidence) if isinstance(r, AaRecord)), None)
    facts, spec = conclusion.provenance, store.spec
    report = aa_run.reference if aa_run is not None else None
    kinds = ConfirmRun | FinalistResult | SoakRecord
    mine = [r for r in evidence if isinstance(r, kinds) and r.settings == settings]
    proofs = [r for r in mine if isinstance(r, ConfirmRun) and r.stage in PROOFS]
    work = next((r.work for r in proofs if r.work is not None), None)
    soaks = [r for r in mine if isinstance(r, SoakRecord)]
    steps = [r.candidate_step_s for r in proofs if r.candidate_step_s is not None]
    return Winner(
        study=spec.name,
        ended=conclusion.ended,
        settings=refuse_to_hand_on(spec.baseline.merge(settings)),
        baseline=spec.baseline,
        estimate=conclusion.estimate,
        step_s=statistics.median(steps) if steps else None,
        sentence=conclusion.sentence,
        workload_entry=workload_name(spec),
        workload_options=spec.under(FlagSet()).workload.shown.options,
        process_count=report.process_count if report else spec.device.process_count,
        node_count=spec.device.node_count,
        soaked_s=conclusion.soaked_s,
        soak=format_soak(soaks[-1]) if soaks and conclusion.soaked_s is not None else None,
        work=work,
        loss=loss_of(mine),
        conditions=conditions_of(spec, aa_run, facts),
        versions=versions_of(report, facts),
        machine=f"{facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}",
        run=store.path.resolve().name,
    )


def workload_name(spec: StudySpec) -> str:
    """Returns the entry of the workload, or the user's command without its secrets."""
    return spec.workload.entry or shlex.join(spec.workload.shown.command or ())


# ---------------------------------------------------------------------- its loss


def loss_of(evidence: Sequence[AnyRecord]) -> LossCheck | None:
    """Returns the final loss check of a proven set; first steps with another batch alone decide nothing."""
    soaked = [r.loss for r in evidence if isinstance(r, SoakRecord) and r.loss is not None]
    proofs = [r.loss for r in evidence if isinstance(r, ConfirmRun) and r.loss is not None]
    if soaked or not proofs:
        return soaked[-1] if soaked else None
    found = next((check for check in proofs if not check.is_ok), proofs[-1])
    if found.is_final or not found.is_ok:
        return found
    return found.model_copy(update={"is_ok": None, "words": f"inconclusive: it was never soaked; {found.words}"})


def loss_addition(evidence: Sequence[AnyRecord]) -> str:
    """Formats an addition to the conclusion: that the loss was not checked, or the result of the soak's check."""
    found = loss_of(evidence)
    if found is None or found.basis in (LossBasis.STEPS, LossBasis.ROUNDING):
        return f"; {LOSS_NOT_CHECKED}" if found is not None and found.is_ok is None else ""
    is_soaked = any(isinstance(r, SoakRecord) and r.loss is not None for r in evidence)
    return f"; {found.words}" if is_soaked else ""


def require_loss(winner: Winner) -> None:
    """Refuses a winner whose loss was not compared with the default's.

    Raises:
        AutotuneError: If its loss was not compared.
    """
    if winner.loss is None or not winner.loss.is_ok:
        said = winner.loss.words if winner.loss is not None else f"{LOSS_NOT_CHECKED}: its records do not say how"
        raise AutotuneError(
            f"--require-loss wants a winner whose loss was compared with the default's but of {winner.settings}: "
            f"{said}; have the program report its loss and use a new run directory, or leave --require-loss out"
        )


# ---------------------------------------------------------------------- its evidence in words


def _devices_of(winner: Winner) -> list[str]:
    """Formats the devices of a proof, one fact a line."""
    c, lines = winner.conditions, list[str]()
    if c.driver is not None:
        lines.append(f"NVIDIA driver: {c.driver}")
    firmware = [f"{name} {value}" for name, value in (("VBIOS", c.vbios), ("GSP", c.gsp)) if value is not None]
    if limits := [*firmware, *(w for w in (c.clocks, c.power_limit, c.modes) if w is not None)]:
        lines.append("GPU: " + ", ".join(limits))
    if c.device_kind is not None:
        nodes = f" on each of {winner.node_count} nodes" if winner.node_count > 1 else ""
        lines.append(
            f"device: {c.device_count} x {c.device_kind} ({c.platform}){nodes}, {winner.process_count} process(es)"
        )
    return lines


def format_evidence(winner: Winner) -> list[str]:
    """Formats result, conditions, versions and date of a proof, one fact a line."""
    c, estimate = winner.conditions, winner.estimate
    lines = [f"autotune study {winner.study}, {winner.ended}"]
    if estimate is not None:
        lines.append(
            f"{time_of(winner.work)} over the default's: {format_estimate(estimate)} "
            f"({format_change(estimate.ratio)}, "
            f"{estimate.level:.0%} interval over {estimate.pair_count} fresh process pairs)"
        )
    if winner.work is not None:
        lines.append(f"work: {winner.work.candidate} tokens a step, the default's {winner.work.reference}")
    if winner.step_s is not None:
        lines.append(f"step: {format_seconds(winner.step_s)}, the median in that proof")
    soaked = f"{winner.soaked_s:.0f} s" if winner.soaked_s is not None else "not run"
    lines.append(f"soak: {winner.soak or soaked}")
    if winner.loss is not None:
        doubt = "" if winner.loss.is_ok or winner.loss.is_silent else "NOT PROVEN: "
        lines.append(f"loss, as told by the program: {doubt}{winner.loss.words}")
    lines.append("versions: " + ", ".join(f"{n} {v}" for n, v in sorted(winner.versions.items())))
    lines += _devices_of(winner)
    lines.append(f"machine: {winner.machine}")
    options = " ".join(f"{k}={v}" for k, v in winner.workload_options.items())
    lines.append(f"workload: {winner.workload_entry} {options} (hash {c.workload})")
    if winner.options:
        changed = ", ".join(f"{name}={plain(value)}" for name, value in winner.options.items())
        lines.append(f"options, part of this winner, that no variable carries: {changed}")
        lines.append("give them to the program: exec with {NAME} in its arguments, or --format arguments, maxtext")
    lines.append(
        "expires with any change of GPU, count, jax, jaxlib, plugin, driver, firmware, clocks or workload "
        "(autotune recheck)"
    )
    return list(map(visible_line, lines))


# ---------------------------------------------------------------------- a file and its run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Comparison of a proof with the records of its run, or with this machine.

    Attributes:
        differences: In the records, the machine, the workload or the file itself.
        unchecked: Reason in one sentence if the run of an exported file was not looked at.
        notes: Checks that were not made, and actions to repeat.
    """

    differences: tuple[Difference, ...] = ()
    unchecked: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> Literal["holds", "unchecked", "differs"]:
        """Whether nothing differs."""
        return "differs" if self.differences else "holds" if self.unchecked is None else "unchecked"


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> Verification:
    """Compares an exported winner with the records of its run, if found.

    Args:
        file: Its run is searched beside it, in `runs/` beside it, and in `runs/` here.
        run: The run directory, instead of a search.

    Raises:
        RunDirectoryError: If `run` is not a run directory.
    """
    if (path := run or _find_run(winner.run, file)) is None:
        return _unchecked(f"its run {winner.run!r} is not here; name it with --run RUN")
    try:
        store = Store.open(path)
        conclusion = next((c for c in store.of(ConclusionRecord) if c.ended == winner.ended), None)
        if conclusion is None:
            return _unchecked(f"{path} is of another proof; name its own with --run RUN")
        wrong = disagreements(store, conclusion)
    except RunDirectoryError as error:
        if run is not None:
            raise
        conclusion, wrong = None, [str(error)]
    if conclusion is None or wrong:
        found = [Difference(field="records", proven="what was recorded", here=line) for line in wrong]
        return Verification(differences=tuple(found))
    ours, theirs = (dict(w) for w in (_winner_at(store, conclusion), winner))
    return Verification(
        differences=tuple(
            Difference(field=name, proven=f"{ours[name]} in its records", here=f"{theirs[name]} in the file")
            for name in ours
            if name != "run" and ours[name] != theirs[name]
        )
    )


def _unchecked(why: str) -> Verification:
    return Verification(unchecked=f"unchecked, so nothing here shows that it was proven: {why}")


def _find_run(name: str, file: Path) -> Path | None:
    """Finds the run directory of that name nearest to an exported file."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    beside = file.resolve().parent
    found = [beside if beside.name == name else beside / name, beside / RUNS / name, Path(RUNS) / name]
    return next((path for path in found if (path / "study.json").is_file()), None)
