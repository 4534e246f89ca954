"""The user's own constraints between parameters: ``batch * accumulate == 16``, ``not (attention == 'cudnn' and ...)``.

A rule names options as they are (``batch``) and settings by their full names (``xla_gpu_...``, ``NCCL_PROTO``). What a
set does not name has the reference's value; a setting that neither names is as the build has it, or ``none``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.model.errors import SettingError, StudyFileError, close_matches
from autotune.model.expressions import CONSTANTS, Expression
from autotune.model.names import OPTION, kind_of
from autotune.model.options import options_in

MOST_COMBINATIONS = 10_000
"""Of the values of one rule's names that are tried when the study is loaded."""


def broken_rule(
    settings: Mapping[str, str],
    rules: Sequence[str],
    *,
    options: Mapping[str, Any],
    baseline: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> str | None:
    """The first rule that a set breaks, or None.

    Args:
        settings: A candidate: settings, and options as ``option.NAME``.
        rules: `limits.rules` of a study, checked by `check_rules`.
        options: The reference's options (`StudySpec.reference_options`).
        baseline: The reference's settings.
        defaults: What the installed build has where nobody sets anything.

    Raises:
        StudyFileError: If a rule cannot be told for this set, such as a sum over text.
    """
    if not rules:
        return None
    values: dict[str, object] = {n: plain_value(v) for n, v in {**(defaults or {}), **(baseline or {})}.items()}
    values |= {n: plain_value(v) for n, v in settings.items() if not n.startswith(OPTION)}
    values |= {**options, **options_in(settings)}
    for text in rules:
        if not _holds(Expression(text, is_condition=True), values):
            return text
    return None


def check_rules(rules: Iterable[str], domains: Mapping[str, Sequence[Any]]) -> None:
    """Refuses rules that no candidate could be held to.

    Args:
        rules: `limits.rules` of a study.
        domains: Option to all values that a candidate may have, the reference's included. Settings need none.

    Raises:
        ValueError: If one is malformed, names what is neither an option nor a setting, or cannot be told for some of
            the options' values; the message says which.
    """
    for text in rules:
        try:
            rule = Expression(text, is_condition=True)
        except ValueError as error:
            raise ValueError(f"`limits.rules` must be: {error}") from None
        for name in rule.names:
            if name not in domains and not _is_setting(name):
                hint = close_matches(name, [*domains, *CONSTANTS])
                raise ValueError(
                    f"`limits.rules`: {text!r} names {name!r}, which is neither a setting nor an option in "
                    f"`workload.options` or `search.options`; write it there{hint}"
                )
        if all(name in domains for name in rule.names):
            _try_all(rule, domains)


def combinations(names: Sequence[str], domains: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """What some options may be together; the first `MOST_COMBINATIONS` of it."""
    for values in itertools.islice(itertools.product(*(domains[n] for n in names)), MOST_COMBINATIONS):
        yield dict(zip(names, values, strict=True))


def _try_all(rule: Expression, domains: Mapping[str, Sequence[Any]]) -> None:
    """Evaluates a rule for what its options may be, so that none fails in the middle of a study."""
    truths = set()
    for values in combinations(rule.names, domains):
        try:
            truths.add(_holds(rule, values))
        except StudyFileError as error:
            raise ValueError(f"{error}") from None
    if truths == {False}:
        raise ValueError(f"`limits.rules`: nothing that is searched keeps {rule.text!r}")


def _holds(rule: Expression, values: Mapping[str, object]) -> bool:
    known = {name: values.get(name) for name in rule.names}
    shown = ", ".join(f"{n} = {v!r:.40}" for n, v in known.items())
    try:
        found = rule.value(known)
    except ValueError as error:
        raise StudyFileError(f"`limits.rules` must be true or false of every candidate but {error} ({shown})") from None
    if not isinstance(found, bool):
        raise StudyFileError(f"`limits.rules` must be true or false but {rule.text!r} is {found!r:.60} ({shown})")
    return found


def _is_setting(name: str) -> bool:
    try:
        return kind_of(name) != "option"
    except SettingError:
        return False


def plain_value(text: str) -> object:
    """A setting's text as a rule means it: ``true`` and numbers are that, all else is text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
