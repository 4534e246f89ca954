"""Rules by which NCCL's example tuner gives collectives an algorithm, a protocol and channels, as a setting.

The first rule that fits counts. The plugin takes an unknown word for ``allreduce``, ``ring`` or ``simple``, and passes
over a short line, both without a complaint: so rules are checked here, by `data/tuner_rules.toml`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping

from autotune.child.variables import TUNER_RULES
from autotune.model.errors import SettingError
from autotune.model.files import packaged_table

TUNER_PLUGIN = "NCCL_TUNER_PLUGIN"
"""Variable of the site that names the library of a tuner: never a setting."""
TUNER = (TUNER_PLUGIN, TUNER_RULES)
NO_PLUGIN = (
    f"{TUNER_PLUGIN} must name the library of NCCL's example tuner, which alone reads {TUNER_RULES}, but is not set; "
    "build plugins/tuner/example of github.com/NVIDIA/nccl, and export its path"
)
MOST_RULES = 100

_FIELDS = packaged_table("tuner_rules.toml")["fields"]
_NAMES = ",".join(name for name, *_ in _FIELDS)


def refuse_wrong_rules(text: str) -> None:
    """Raises SettingError unless a text is rules of NCCL's example tuner, joined by ``;``."""
    rules = text.split(";")
    if len(rules) > MOST_RULES:
        raise SettingError(f"{TUNER_RULES} must hold at most {MOST_RULES} rules but holds {len(rules)}; leave some out")
    for number, rule in enumerate(rules, 1):
        if problem := _problem(rule.split(",")):
            raise SettingError(
                f"rule {number} of {TUNER_RULES} must {problem}, in {rule!r:.200}; write the rules themselves, "
                "no file, joined by `;`"
            )


def _problem(fields: list[str]) -> str:
    if not 8 <= len(fields) <= len(_FIELDS):
        return f"have 8 to {len(_FIELDS)} fields ({_NAMES}) but has {len(fields)}"
    for field, (name, pattern, legal) in zip(fields, _FIELDS, strict=False):
        if not re.fullmatch(pattern, field, re.ASCII):
            return f"have as {name} {legal} but has {field!r:.60}"
    least, most = fields[1:3]
    return "" if int(least) <= int(most) else f"have minbytes of at most maxbytes but has {least} and {most}"


def rules_file(rules: str) -> str:
    """Returns the name of the file of rules; equal rules have the same."""
    return f"nccl_tuner-{hashlib.sha256(rules.encode()).hexdigest()[:12]}.conf"


def shell_lines(settings: Mapping[str, str]) -> list[str]:
    """Returns lines of a shell that write the rules of a set, if any, to a file in the folder of the call."""
    if not (rules := settings.get(TUNER_RULES)):
        return []
    words = " ".join(map(shlex.quote, rules.split(";")))
    return [
        f'export {TUNER_RULES}="$PWD/{rules_file(rules)}"',
        f"printf '%s\\n' {words} > \"${TUNER_RULES}\" || return 1 2>/dev/null || exit 1",
    ]
