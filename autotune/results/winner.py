"""A proven winner as one record: its settings, its evidence, and the conditions under which it was proven.

Every exported file carries this record in one comment line, so that `verify` and `exec` can say of any of
them whether this machine is one on which it was proven, and whether somebody changed the file since.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from autotune.machine import caller_environment, cuda_plugin, describe_machine, visible_gpus
from autotune.model import (
    PREDICTED,
    AutotuneError,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    Objective,
    Outcome,
    Record,
    Settings,
    StudySpec,
    describe_member,
)
from autotune.rundir import Store
from autotune.stats import Estimate

WINNER_VERSION = 1
# 1: first published form (2026-11).

MARK = "autotune-winner: "
"""Starts the comment that holds the record in an exported file."""

RECHECK_DAYS = 180
"""Days after which a proof should be repeated though no version changed: firmware is patched quietly."""


class Conditions(Record):
    """Where a winner was proven; what `verify` compares. None stands for what is not known.

    Attributes:
        device_kind: The device's name in JAX's words, such as ``NVIDIA H200``.
        device_count: Devices of one node.
        plugin: The CUDA plugin with its version, such as ``jax-cuda12-plugin 0.10.2``.
        driver_major: First part of the NVIDIA driver's version.
        cpu: The processor's name; compared only where the workload ran on it.
        cpus_usable: Processors that the process may use; likewise.
        workload: `StudySpec.workload_hash`.
    """

    platform: str
    device_kind: str | None = None
    device_count: int | None = None
    jax: str | None = None
    jaxlib: str | None = None
    plugin: str | None = None
    driver_major: str | None = None
    cpu: str | None = None
    cpus_usable: int | None = None
    workload: str | None = None

    @property
    def gpu(self) -> str:
        """Name of the device, or of the processor where the workload ran on that."""
        if self.platform == "cpu" and self.device_kind == "cpu":
            return self.cpu or "unknown CPU"
        return str(self.device_kind)


class Winner(Record):
    """A proven flag set and all that is needed to judge whether the proof holds elsewhere.

    Attributes:
        settings: The whole set, baseline included: exactly what was measured.
        baseline: The part of it that the study's reference had too.
        step_s: Median step of the winner in its final proof, seconds; None where it was not kept.
        node_count: Machines that the workload spans.
        soaked_s: Seconds of the long run before the export; None if there was none.
        is_predicted: Nothing was measured, so nothing is proven; a model alone says so.
        others: Ratios of the objectives other than step time, of a study that had any.
    """

    winner_version: Annotated[int, Field(ge=WINNER_VERSION, le=WINNER_VERSION)] = WINNER_VERSION
    study: str
    ended: str
    settings: Settings
    baseline: Settings
    estimate: Estimate | None = None
    step_s: float | None = None
    sentence: str
    workload_entry: str
    workload_options: dict[str, Any]
    mesh: dict[str, int] = Field(default_factory=dict)
    process_count: int = 1
    node_count: int = 1
    soaked_s: float | None = None
    others: dict[Objective, Estimate] | None = None
    conditions: Conditions
    versions: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    is_predicted: bool = False

    @property
    def recheck_by(self) -> str:
        """The day after which the proof counts as old, ISO 8601; empty if the end is not dated."""
        try:
            return (datetime.fromisoformat(self.ended) + timedelta(days=RECHECK_DAYS)).date().isoformat()
        except ValueError:
            return ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that set exactly this winner."""
        return self.settings.to_environment()


def proven_winner(store: Store, trial: int | None = None) -> ConclusionRecord:
    """The conclusion of a run, as if its winner, or the set of its front that is asked for, were all that it found.

    Args:
        store: The run.
        trial: The set of a front; None for the winner, or the fastest of the front.

    Raises:
        AutotuneError: If the run is not finished, or there is no such proven set.
    """
    conclusion = store.last(ConclusionRecord)
    if conclusion is None:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if store.spec.is_predicted:
        raise AutotuneError(
            f"only a proven winner is exported but {store.path} is {PREDICTED}; run the study on its GPUs, or write "
            "what the model favours all the same with --force"
        )
    if conclusion.outcome is Outcome.FRONT:
        return _of_the_front(store, conclusion, trial)
    if trial not in (None, conclusion.trial):
        raise AutotuneError(
            f"only a proven set is exported but trial {trial} of {store.path} is not one: {conclusion.sentence}"
        )
    if conclusion.outcome is not Outcome.WINNER or not conclusion.settings:
        raise AutotuneError(
            f"only a proven winner is exported but of {store.path}: {conclusion.sentence}; "
            "the default settings are what to use here"
        )
    return conclusion


def _favourite(store: Store) -> ConclusionRecord:
    """The conclusion of a run that predicts, if its model favours a set."""
    conclusion = store.last(ConclusionRecord)
    if conclusion is None or not conclusion.settings:
        said = conclusion.sentence if conclusion else "it has not ended"
        raise AutotuneError(f"a run must favour a set to be written but of {store.path}: {said}")
    return conclusion


def _of_the_front(store: Store, conclusion: ConclusionRecord, trial: int | None) -> ConclusionRecord:
    """The conclusion narrowed to one set of the front."""
    members = conclusion.front or ()
    names = f"autotune export {store.path} --trial {'|'.join(map(str, members))}"
    if trial is None and conclusion.trial is None:
        raise AutotuneError(
            "a front without a set that is faster than the default has none that stands for it: choose one by what it "
            f"saves ({names}); {conclusion.sentence}"
        )
    wanted = conclusion.trial if trial is None else trial
    # What fresh processes said last of it.
    chosen = next((f for f in reversed(store.of(FinalistResult)) if (f.stage, f.trial) == ("confirm", wanted)), None)
    if chosen is None or chosen.trial not in members:
        raise AutotuneError(
            f"only a set of the proven front is exported but trial {trial} of {store.path} is not one; try {names}"
        )
    sentence = describe_member(chosen, store.spec.search.objectives)
    update = {"settings": chosen.settings, "trial": chosen.trial, "estimate": chosen.corrected, "sentence": sentence}
    return conclusion.model_copy(update=update)


def winner_of(store: Store, trial: int | None = None, *, even_predicted: bool = False) -> Winner:
    """The winner of a run directory, or a set of its front; see `proven_winner`.

    Args:
        store: The run directory.
        trial: A set of the front; None for the winner, or the fastest of the front.
        even_predicted: Take the favourite of a study in which nothing was measured, marked as what it is.

    Raises:
        AutotuneError: If it has none.
    """
    is_predicted = even_predicted and store.spec.is_predicted
    conclusion = _favourite(store) if is_predicted else proven_winner(store, trial)
    assert conclusion.settings is not None
    of_front = conclusion.outcome is Outcome.FRONT
    floor, facts, spec = store.last(FloorResult), conclusion.provenance, store.spec
    report = floor.reference if floor is not None else None
    runs = [r for r in store.of(ConfirmRun) if r.settings == conclusion.settings]
    proofs = [r for r in runs if (r.stage == "confirm") == of_front]  # a front is not proven a second time
    proven = [f for f in store.of(FinalistResult) if f.settings == conclusion.settings]
    steps = [r.candidate_step_s for r in proofs if r.candidate_step_s is not None]
    return Winner(
        study=spec.name,
        ended=conclusion.ended,
        settings=spec.baseline.merge(conclusion.settings),
        baseline=spec.baseline,
        estimate=conclusion.estimate,
        step_s=statistics.median(steps) if steps else None,
        sentence=conclusion.sentence,
        workload_entry=workload_name(spec),
        workload_options=spec.workload.shown.options,
        mesh=report.mesh if report else {},
        process_count=report.process_count if report else spec.device.process_count,
        node_count=spec.device.node_count,
        soaked_s=conclusion.soaked_s,
        others=next((f.others for f in reversed(proven) if f.others), None),
        conditions=conditions_of(spec, floor, facts),
        versions=facts.get("versions", {}),
        machine=f"{facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}",
        is_predicted=is_predicted,
    )


def workload_name(spec: StudySpec) -> str:
    """What a study runs, in a few words: its workload, or the user's own command, less the secrets in it."""
    return spec.workload.entry or shlex.join(spec.workload.shown.command or ())


def conditions_of(spec: StudySpec, floor: FloorResult | None, facts: dict[str, Any]) -> Conditions:
    """The conditions of a run, from what its reference and its provenance say."""
    report = floor.reference if floor is not None else None
    versions = {**(report.versions if report else {}), **facts.get("versions", {})}
    driver = facts.get("driver")
    on_cpu = spec.device.platform == "cpu"
    return Conditions(
        platform=spec.device.platform,
        device_kind=report.device_kind if report else None,
        device_count=report.device_count // spec.device.node_count if report else None,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=None if on_cpu else cuda_plugin(versions),
        driver_major=None if on_cpu or not driver else str(driver).partition(".")[0],
        cpu=facts.get("cpu") if on_cpu else None,
        cpus_usable=facts.get("cpus_usable") if on_cpu else None,
        workload=spec.workload_hash,
    )


# ---------------------------------------------------------------------- files


def comment_line(winner: Winner) -> str:
    """The winner as text for one comment line: plain ASCII, no line ends."""
    data = json.loads(winner.model_dump_json(exclude_none=True))
    return MARK + json.dumps(data, ensure_ascii=True, separators=(",", ":"))


def read_winner(path: Path) -> Winner:
    """The winner that a run directory or an exported file of any format holds.

    Raises:
        AutotuneError: If there is none in it.
    """
    if path.is_dir():
        return winner_of(Store.open(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AutotuneError(f"{path} must be a run directory or a file of `autotune export` but: {error}") from error
    return parse_winner(text, source=str(path))


def parse_winner(text: str, *, source: str) -> Winner:
    """The winner in the text of an exported file.

    Raises:
        AutotuneError: If there is none, or it is damaged.
    """
    try:
        marked = re.search(rf"^# {MARK}(.*)$", text, re.MULTILINE)
        data = json.loads(marked[1]) if marked else json.loads(text)["winner"]
        return Winner.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise AutotuneError(
            f"{source} must hold a winner of form {WINNER_VERSION} but `{where}`: {first['msg']}; export it again"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise AutotuneError(
            f"{source} must be a file of `autotune export` (with its `# {MARK.strip()}` line) but is not; "
            "export it again"
        ) from error


# ---------------------------------------------------------------------- does it hold here?


class Difference(Record):
    """One condition that is not what it was in the proof."""

    field: str
    proven: str
    here: str

    def __str__(self) -> str:
        return f"{self.field}: proven with {self.proven}, here {self.here}"


def this_machine(*, platform: str, workload: str | None = None) -> Conditions:
    """What this machine offers a workload, without starting JAX on it.

    Args:
        platform: ``cpu`` or ``cuda``.
        workload: Hash of the workload that is meant to run, if the caller names one.
    """
    facts = describe_machine()
    versions = facts["versions"]
    gpus = [g.name for g in visible_gpus(caller_environment())] if platform == "cuda" else []
    driver = facts.get("driver") if platform == "cuda" else None
    return Conditions(
        platform=platform if platform == "cpu" or gpus else "cpu",
        device_kind=" and ".join(sorted(set(gpus))) if gpus else "cpu",
        device_count=len(gpus) if platform == "cuda" else None,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=cuda_plugin(versions),
        driver_major=driver.partition(".")[0] if driver else None,
        cpu=facts["cpu"],
        cpus_usable=facts["cpus_usable"],
        workload=workload,
    )


def differences(proven: Conditions, here: Conditions) -> list[Difference]:
    """The conditions in which a machine is not what the proof was made on.

    What the proof did not record is not compared, nor the workload if `here` names none. On CPU the count of
    devices is the workload's own choice.
    """
    found = []
    for field in Conditions.model_fields:
        wanted, got = getattr(proven, field), getattr(here, field)
        if wanted is None or wanted == got or (field == "workload" and got is None):
            continue
        if field == "device_count" and proven.platform == "cpu":
            continue
        found.append(Difference(field=field, proven=str(wanted), here="none" if got is None else str(got)))
    return found
