"""What a step of each arm gets done: arms that differ in it are compared by time per token, never by time per step."""

from __future__ import annotations

from autotune.model import (
    Failure,
    FailureKind,
    FlagSet,
    LaunchError,
    StudySpec,
    WorkerReport,
    WorkPerStep,
)
from autotune.workers import WorkerFailed

HOW_TO_SAY = 'say what a step does: `workload.tokens_per_step = "batch * seq"`, an expression over the options'


def work_between(settings: tuple[FlagSet, FlagSet], reports: tuple[WorkerReport, WorkerReport]) -> WorkPerStep | None:
    """What a step of reference and candidate does; None where both do the same, or neither tells.

    Args:
        settings: Of reference and candidate.
        reports: Of both.

    Raises:
        WorkerFailed: If one of them tells and the other does not, or if they differ though their options are the same:
            a flag may change how fast a step is, and not what it does.
    """
    (base, ours), (reference, candidate) = settings, (r.tokens_per_step or None for r in reports)
    if reference == candidate:
        return None
    if reference is None or candidate is None:
        silent, tells = ("the reference", "the candidate") if reference is None else ("the candidate", "the reference")
        problem = f"both arms must tell what a step does but {tells} says {reference or candidate} and {silent} nothing"
        raise _not_comparable(f"{problem}; {HOW_TO_SAY}")
    if base.of_kind("option") == ours.of_kind("option"):
        raise _not_comparable(
            f"a step must do the same under the same options but the reference says {reference} tokens and the "
            f"candidate {candidate}; flags change how fast it is, so the program tells something else than it does"
        )
    return WorkPerStep(reference=reference, candidate=candidate)


def with_declared_work(spec: StudySpec, settings: FlagSet, report: WorkerReport) -> WorkerReport:
    """A report with what the study file says of a step under these options.

    Raises:
        WorkerFailed: If the program itself says another number of tokens.
    """
    try:
        declared = spec.work_under(settings)
    except ValueError as error:
        raise _not_comparable(str(error)) from None
    if declared is None:
        return report
    told = report.tokens_per_step
    if told and told != declared:
        raise _not_comparable(
            f"`workload.tokens_per_step` gives {declared} for {settings.of_kind('option')} but the program says "
            f"{told} tokens a step; mend the expression, or take it out"
        )
    return report.model_copy(update={"tokens_per_step": declared})


def refuse_untold_work(spec: StudySpec, reference: WorkerReport) -> None:
    """Refuses a search of options whose effect on the work of a step nobody tells.

    Raises:
        LaunchError: If it is one.
    """
    if spec.search.options and spec.replay is None and not reference.tokens_per_step:
        raise LaunchError(
            "where options are searched, what a step does must be known but the workload does not tell its tokens "
            f"per step, so half a batch would pass for twice the speed; {HOW_TO_SAY}"
        )


def _not_comparable(message: str) -> WorkerFailed:
    return WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase="check"))
