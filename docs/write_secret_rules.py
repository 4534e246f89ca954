"""Writes `autotune/data/secrets.json` from the rules of gitleaks.

Run as ``python docs/write_secret_rules.py gitleaks.toml COMMIT`` with `config/gitleaks.toml` of
https://github.com/gitleaks/gitleaks at that commit. Go's regular expressions become Python's.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "autotune" / "data" / "secrets.json"

# `autotune.model.redaction` judges names itself: it knows those of training that hold no secret.
# Python's engine, which backtracks, may take hours for the two rules of curl.
LEFT_OUT = {"generic-api-key", "curl-auth-header", "curl-auth-user"}

# What gitleaks does not know: https://build.nvidia.com, a Weights & Biases server of one's own, and
# what the end of a line cut off.
MORE = {
    "nvidia-api-key": {"keywords": ["nvapi-"], "regex": r"\bnvapi-[\w-]{20,}"},
    "groq-replicate-google-docker-token": {
        "keywords": ["gsk_", "r8_", "ya29.", "dckr_pat_"],
        "regex": r"\b(?:gsk_|r8_|ya29\.|dckr_pat_)(?=[\w.-]*\d)[\w.-]{20,}",
    },
    "discord-webhook": {
        "keywords": ["/webhooks/"],
        "regex": r"discord(?:app)?\.com/api/webhooks/\d+/([\w-]{20,})",
    },
    "telegram-bot-token": {"keywords": [":aa"], "regex": r"\b\d{8,10}:AA[\w-]{30,}"},
    "wandb-local-api-key": {"keywords": ["local-"], "regex": r"\blocal-[0-9a-f]{40}\b"},
    "token-cut-off": {
        "keywords": [
            "hf_",
            "sk-",
            "ghp_",
            "gho_",
            "ghu_",
            "ghs_",
            "ghr_",
            "github_pat_",
            "glpat-",
            "npm_",
        ],
        "regex": r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|npm_|sk-(?=[\w-]*\d))[\w-]{16,}",
    },
    "private-key-cut-off": {
        "keywords": ["-----begin"],
        "regex": r"-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY[\s\S]*",
    },
}

LICENCE = (
    "MIT, Copyright (c) 2019 Zachary Rice: https://github.com/gitleaks/gitleaks/blob/master/LICENSE"
)
END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
"""What must follow a token in a source file; in a command or a URL, more can."""


def to_python(regex: str) -> str:
    """Translates one regular expression of Go."""
    text = (
        regex.replace(END, r"(?![\w-])").replace(r"\z", r"\Z").replace("[[:alnum:]]", "[A-Za-z0-9]")
    )
    text = re.sub(r"\(\?P<\w+>", "(?:", text)
    head, text = ("(?i)", text[4:]) if text.startswith("(?i)") else ("", text)
    while (at := text.find("(?i)")) >= 0:  # of the rest of its group
        end = _end_of_group(text, at + 4)
        text = f"{text[:at]}(?i:{text[at + 4 : end]}){text[end:]}"
    return head + text


def _end_of_group(text: str, start: int) -> int:
    """Finds the bracket that closes the group at a place; the end of the text if there is none."""
    depth = 0
    for found in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|[()]", text[start:]):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth < 0:
            return start + found.start()
    return len(text)


def main(source: Path, commit: str) -> None:
    """Writes the file."""
    rules = {r["id"]: r for r in tomllib.loads(source.read_text())["rules"] if "regex" in r}
    kept = {n: r for n, r in {**rules, **MORE}.items() if n not in LEFT_OUT}
    made = {n: {"keywords": r["keywords"], "regex": to_python(r["regex"])} for n, r in kept.items()}
    for rule in made.values():
        re.compile(rule["regex"])
    page = f"https://github.com/gitleaks/gitleaks/blob/{commit}/config/gitleaks.toml"
    lines = ",\n".join(f" {json.dumps(n)}: {json.dumps(r)}" for n, r in made.items())
    head = f'"source": {json.dumps(page)},\n"licence": {json.dumps(LICENCE)},\n"rules": {{\n'
    TARGET.write_text(f"{{{head}{lines}\n}}}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
