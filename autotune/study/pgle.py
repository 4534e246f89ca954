"""The stage `pgle`: profiles the best candidate, recompiles it with its profile, and measures it against itself.

It comes after minimising, for a profile belongs to one program: whatever changes that changes the names in it. JAX's
own switch is of no use here, see `autotune.child.measure`.
"""

from __future__ import annotations

from autotune.measure.tasks import PendingTask, ProfileTask
from autotune.model.flags import PROFILE, FlagSet
from autotune.model.records import ProfileRecord
from autotune.study.confirm import pays_for_itself
from autotune.study.run import Candidate, StudyRun

PROFILED_STEPS = 5

OF_COMMAND = "a program that compiles by itself is profiled by JAX itself: search the group `pgle` (jax_enable_pgle)"


def profile_guide(run: StudyRun) -> None:
    """Profiles the first candidate; if it seems faster with the profile, the set with it is proven first."""
    if not run.waiting or run.spec.confirm.pgle is False:
        return
    if (why := why_not(run)) is not None:
        if why:
            run.view.note(f"no profile: {why}")
        return
    if not run.time.allows(lambda takes: takes.start_s + takes.ablation_s):
        run.view.note("no profile: what is left of the budget is kept for the proof")
        return
    first = run.waiting[0]
    settings = first.settings
    run.begin_stage("pgle", f"{PROFILED_STEPS} steps are profiled, and compiled again with what they took")
    record = _profile(run, settings)
    if record.profile is None:
        run.view.note(f"no profile: {record.failure.message if record.failure else record.reason}")
        return
    profiled = settings.merge({PROFILE: record.profile.reference})
    if pays_for_itself(run, profiled, PROFILE):
        run.candidates.insert(0, Candidate(first.trial, profiled, first.state))


def why_not(run: StudyRun) -> str | None:
    """Returns why nothing is profiled, empty where the user need not be told; None if it can be."""
    spec = run.spec
    if PROFILE in spec.baseline.merge(run.waiting[0].settings):
        return "the study names a profile itself"
    if spec.workload.command is not None:
        return OF_COMMAND if spec.device.platform != "cpu" else ""
    if spec.device.platform == "cpu":
        return "on a CPU nothing reads a profile: XLA:CPU has no latency hiding scheduler"
    if spec.confirm.pgle == "auto" and (run.facts.device_count or 1) < 2:
        return (
            "one device has no collectives whose waiting the scheduler could hide; `confirm.pgle = true` profiles all "
            "the same"
        )
    return None


def _profile(run: StudyRun, settings: FlagSet) -> ProfileRecord:
    """Returns a set's profile, as recorded or taken now; a failed one is tried once a session."""
    for known in run.store.of(ProfileRecord):
        if known.settings == settings and known.profile is not None:
            return known
    unit = ProfileTask(settings=settings, steps=PROFILED_STEPS)
    run.lanes.do(PendingTask(unit, ("pgle", settings.digest), f"profile-{settings.digest}", run.store.append))
    return run.store.of(ProfileRecord)[-1]
