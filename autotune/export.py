"""A proven winner as a file that other programs read, with its evidence in comments."""

from __future__ import annotations

import shlex
from enum import StrEnum

from autotune.errors import AutotuneError
from autotune.records import ConclusionRecord, FloorResult, Outcome
from autotune.store import Store
from autotune.units import format_change, format_interval, format_ratio


class Format(StrEnum):
    """What the file is for."""

    ENV = "env"


def proven_winner(store: Store) -> ConclusionRecord:
    """The conclusion of a run that has a winner.

    Raises:
        AutotuneError: If the run is not finished, or nothing beats the default: there is nothing to export then.
    """
    conclusion = store.last(ConclusionRecord)
    if conclusion is None:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if conclusion.outcome is not Outcome.WINNER or not conclusion.settings:
        raise AutotuneError(
            f"only a proven winner is exported but of {store.path}: {conclusion.sentence}; "
            "the default settings are what to use here"
        )
    return conclusion


def provenance_lines(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """What was proven, where, with what and when, one fact a line."""
    facts = conclusion.provenance
    floor = store.last(FloorResult)
    estimate = conclusion.estimate
    lines = [f"autotune study {store.spec.name}, {conclusion.ended}"]
    if estimate is not None:
        lines.append(
            f"step time over the default's: {format_ratio(estimate.ratio)} {format_interval(estimate.low, estimate.high)} "
            f"({format_change(estimate.ratio)}, {estimate.level:.0%} interval over {estimate.pair_count} fresh process pairs)"
        )
    lines.append(f"soak: {'not run' if conclusion.soaked_s is None else f'{conclusion.soaked_s:.0f} s'}")
    lines.append("versions: " + ", ".join(f"{n} {v}" for n, v in sorted(facts.get("versions", {}).items())))
    if floor is not None:
        report = floor.reference
        lines.append(f"device: {report.device_count} x {report.device_kind} ({report.platform}), {report.process_count} process(es)")
    lines.append(f"machine: {facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}")
    options = " ".join(f"{k}={v}" for k, v in store.spec.workload.options.items())
    lines.append(f"workload: {store.spec.workload.entry} {options} (hash {store.spec.workload_hash})")
    return lines


def render(store: Store, form: Format) -> str:
    """The winner as text in one format.

    Raises:
        AutotuneError: If there is no proven winner.
    """
    conclusion = proven_winner(store)
    assert conclusion.settings is not None
    merged = store.spec.baseline.merge(conclusion.settings)
    lines = [f"# {_one_line(line)}" for line in provenance_lines(store, conclusion)]
    lines.append(f"# measure again after any upgrade: autotune run with the study file of {_one_line(store.spec.name)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in merged.to_environment().items()]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    """Text that cannot end a comment line."""
    return "".join(c if c.isprintable() else " " for c in text)
