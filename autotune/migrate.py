"""Rewrites settings for the installed build: a flag set for a trial, or the text of a script."""

from __future__ import annotations

from autotune.catalog import Catalog
from autotune.check import SettingVerdict, check_settings
from autotune.flags import FlagSet
from autotune.installed import ProbeReport

_DROPPED = (
    SettingVerdict.NO_EFFECT,
    SettingVerdict.REMOVED,
    SettingVerdict.UNKNOWN,
    SettingVerdict.ALREADY_DEFAULT,
)


def for_build(settings: FlagSet, report: ProbeReport, catalog: Catalog) -> FlagSet:
    """What of a published set the installed build acts on: new names, nothing dead, wrong or dangerous."""
    kept: dict[str, str] = {}
    for check in check_settings(settings, report, catalog):
        name, value = check.name, check.value or ""
        if check.verdict is SettingVerdict.RENAMED:
            if check.replacement is None:
                continue
            name, value = check.replacement
        elif check.verdict is not SettingVerdict.EFFECTIVE:
            continue
        # Several old names may have become one list.
        kept[name] = f"{kept[name]},{value}" if name in kept and check.replacement else value
    return FlagSet(kept)
