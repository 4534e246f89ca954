"""Before anything starts: the installed build is asked, the study's settings are checked, the space is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.machine import caller_environment, steering_settings
from autotune.model import (
    FlagSet,
    SettingError,
    StudySpec,
    WorkloadFacts,
    artefacts_of,
    close_matches,
    kind_of,
    refuse_redacted,
)
from autotune.results import Entry
from autotune.rundir import Store
from autotune.settings import (
    KnownSettings,
    SearchSpace,
    SettingVerdict,
    Stage,
    build_space,
    check_settings,
    find_recipe,
    for_build,
    probe_build,
)
from autotune.study.library_priors import Lessons, entries_for, lessons_of
from autotune.study.probe import program_python, refuse_other_build
from autotune.study.proposer import open_study
from autotune.study.samplers import check_sampler
from autotune.workers import CommandLauncher, Launcher, LocalLauncher, ReplayLauncher, SrunLauncher

REFUSED = frozenset({SettingVerdict.DANGEROUS})
"""Verdicts for which a setting is refused although a process would start with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """A study that may start.

    Attributes:
        spec: The study.
        known: What is known of settings on the installed build.
        python: Interpreter of that build: the one under which the study's program runs.
        first: Sets to try before the sampler proposes, with who suggests them.
        rule_defaults: See `rule_defaults`.
        library: The winners that the study learns from.
    """

    spec: StudySpec
    known: KnownSettings
    python: str
    first: tuple[tuple[str, FlagSet], ...]
    rule_defaults: Mapping[str, str] = field(default_factory=dict)
    library: tuple[Entry, ...] = ()

    @property
    def jaxlib(self) -> str:
        """The build's release."""
        return self.known.build.jaxlib

    def launcher(self, store: Store) -> Launcher:
        """The launcher that the study asks for."""
        return make_launcher(store.spec, store.study_dir)

    def lessons(self, kind: str | None, count: int | None, note: Callable[[str], None]) -> Lessons:
        """See `autotune.study.run.Setup`; sets that break a rule of the study are left out."""
        found = lessons_of(self.library, self.spec, self.known, device_kind=kind, device_count=count, note=note)
        return replace(found, first=keeping_rules(self.spec, found.first, self.rule_defaults, note))

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """Those settings that a fingerprint of the program does not hold: unknown ones count among them."""
        return FlagSet({n: v for n, v in settings.items() if self.known[n].stage is not Stage.PROGRAM})

    def space(self, reference: WorkloadFacts | None) -> SearchSpace:
        """The search space of this study on this build.

        Raises:
            StudyFileError: If the reference ran on another build.
        """
        refuse_other_build(self.known.build.jaxlib, self.python, self.spec, reference)
        return build_space(self.spec, self.known, reference)


def prepare(spec: StudySpec, *, study_dir: Path, storage: str | None, note: Callable[[str], None]) -> Preflight:
    """Asks the build, checks every setting that the study names, gathers what goes first, and builds the space.

    Args:
        spec: The study.
        study_dir: Folder of the study file.
        storage: URL of the user's Optuna storage, or None.
        note: Told what happens and what was left out.

    Raises:
        SettingError: If the study names a setting that the installed build refuses; all of them are named.
        StudyFileError: If there is no such sampler or library, or the storage cannot be opened.
        LaunchError: If the installed build cannot be asked.
    """
    refuse_missing_secrets(spec, source="the study")
    check_sampler(spec.search)
    note("asking the installed build which settings it has")
    python = program_python(spec, study_dir, note=note)
    library = entries_for(spec, study_dir)
    known = known_settings(spec, python)
    note(f"{known.build.build}: {sum(f.in_xla_flags for f in known.build.flags.values())} XLA flags")
    _refuse(spec, known)
    defaults = rule_defaults(spec, known)
    first = keeping_rules(spec, _first_sets(spec, known, note), defaults, note)
    build_space(spec, known, None)  # an unknown group must not wait for the reference to run
    if storage is not None:
        open_study(spec, storage)  # a mistyped URL must not wait for it either
    return Preflight(spec=spec, known=known, python=python, first=first, rule_defaults=defaults, library=library)


def known_settings(spec: StudySpec, python: str) -> KnownSettings:
    """What is known of settings on the build of an interpreter, for the platform of a study.

    Raises:
        LaunchError: If the build cannot be asked.
    """
    return KnownSettings(probe_build(python, platform=spec.device.platform))


def make_launcher(spec: StudySpec, study_dir: str) -> Launcher:
    """The launcher that a study asks for.

    Raises:
        LaunchError: If its trials span several nodes and there are none.
    """
    if spec.replay is not None:
        device = spec.device
        return ReplayLauncher(spec.replay, seed=spec.seed, platform=device.platform, device_count=device.count or 1)
    kind: type[LocalLauncher] = CommandLauncher if spec.workload.command is not None else LocalLauncher
    if spec.device.node_count > 1:
        kind = SrunLauncher
    return kind(spec, study_dir=study_dir, base=caller_environment())


def refuse_missing_secrets(spec: StudySpec, *, source: str) -> None:
    """Refuses to start a program without the secrets that were redacted in a record of its study.

    Raises:
        StudyFileError: If there are any, by name.
    """
    advice = "name the study file that has them (`recheck --study STUDY.toml`, or `run STUDY.toml`)"
    if spec.replay is None:  # a formula needs none
        refuse_redacted(spec.workload.command, spec.workload.options, source=source, advice=advice)


def _refuse(spec: StudySpec, known: KnownSettings) -> None:
    """Refuses what the build refuses; what would change which program runs is in no `FlagSet`."""
    places = [("baseline", spec.baseline)]
    places += [(f"search.first `{s.name}`", s.settings) for s in spec.search.first]
    places += [("search.settings", FlagSet({name: v})) for name, d in spec.search.settings.items() for v in _values(d)]
    problems: list[str] = []
    for place, settings in places:
        for name in artefacts_of(settings):
            problems.append(f"{place}: {name} stands for an artefact of another study; name its file")
        for check in check_settings(settings, known):
            if not check.starts or check.verdict in REFUSED:
                line = f"{place}: {check.name}={check.value}: {check.reason}; {check.advice}"
                if line not in problems:
                    problems.append(line)
    if problems:
        raise SettingError(
            f"every setting of a study must be one that {known.build.build} takes but:\n"
            + "\n".join(f"  - {p}" for p in problems)
        )


def rule_defaults(spec: StudySpec, known: KnownSettings) -> dict[str, str]:
    """What the build has for the settings that `limits.rules` name, for `StudySpec.broken_rule`.

    Raises:
        SettingError: If the build does not have one; variables of other libraries are not its business.
    """
    for name in spec.rule_settings:
        if kind_of(name) != "env" and not known[name].exists:
            raise SettingError(
                f"`limits.rules` may name settings that {known.build.build} has but got {name}"
                f"{close_matches(name, known.build.flags)}"
            )
    found = {name: known[name].default for name in spec.rule_settings}
    return {name: default for name, default in found.items() if default is not None}


def _first_sets(spec: StudySpec, known: KnownSettings, note: Callable[[str], None]) -> Sequence[tuple[str, FlagSet]]:
    """The caller's own settings, the study's named sets, the recipes: each as far as the build acts on it."""

    def here(settings: FlagSet, whose: str) -> FlagSet:
        return for_build(settings, known, over=spec.baseline, note=lambda text: note(f"{whose}: {text}"))

    found: list[tuple[str, FlagSet]] = []
    if spec.replay is None:
        own = steering_settings(caller_environment())
        found.append(("your environment", here(own, "your environment")))
    found += [(f"set {s.name}", s.whole) for s in spec.search.first]
    for name in spec.search.recipes:
        found.append((f"recipe {name}", here(find_recipe(name).settings, f"recipe {name}")))
    return [(origin, settings) for origin, settings in found if settings]


def keeping_rules(
    spec: StudySpec,
    first: Sequence[tuple[str, FlagSet]],
    defaults: Mapping[str, str],
    note: Callable[[str], None],
) -> tuple[tuple[str, FlagSet], ...]:
    """The sets that keep the study's rules; its own do, the caller's environment and recipes may not."""
    kept = []
    for origin, settings in first:
        if (rule := spec.broken_rule(settings, defaults)) is None:
            kept.append((origin, settings))
        else:
            note(f"{origin} is not tried: it breaks the rule {rule!r}")
    return tuple(kept)


def _values(domain: object) -> list[str | bool | int | float]:
    """The values of a domain that can be checked one by one: all of a list, both ends of a range."""
    if isinstance(domain, dict):
        found: list[str | bool | int | float] = []
        for value in domain.values():
            found += value if isinstance(value, list) else []
        return found + [domain[k] for k in ("low", "high") if k in domain]
    return list(domain) if isinstance(domain, list) else []
