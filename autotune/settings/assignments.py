"""Reads which variables a text sets: a shell script, a container's recipe, a manifest, Python, or a
notebook.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import textwrap
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from autotune.model.flags import parse_text_proto, quote_token
from autotune.settings.catalog import load_catalog

COMPUTED = "…"
"""Stands in a value for what only a run of the program would tell."""

MOST_LATER = 200
"""Limit of later assignments in which a value is looked for."""

MOST_EXPANDED = 10_000_000
"""Limit of characters that references stand for, all together: a variable that doubles itself would
fill memory.
"""

_BRACES = r"\$\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
_COMMAND = r"\$\((?:[^()]|\([^()]*+\))*+\)|`[^`]*+`"
_PIECE = re.compile(
    rf"""'[^']*+'|"(?:{_BRACES}|{_COMMAND}|[^"\\]|\\.)*+"|{_BRACES}|{_COMMAND}|\$\w+|(?<==)\((?:[^()'"]|'[^']*+'|"[^"]*+")*+\)|\\.|[^\s;&|<>()]""",
    re.DOTALL,
)
_TOKEN = re.compile(
    rf"(?<!\S)\#(?!SBATCH|PBS|BSUB)[^\n]*|(?P<end>[\n;&|<>()])|(?P<word>(?:{_PIECE.pattern})+)",
    re.DOTALL,
)
_REFERENCE = re.compile(
    r"(?<!\\)(?:\$\{(\w+)(?:\[[@*]\])?(?::?([-=+])((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*))?\}"
    rf"|\$\((\w+)\)|\$(\w+)|{_BRACES}|{_COMMAND})"
)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*|(?:jax|xla)_\w+")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PREFIX = re.compile(
    r"^(?:!|\w:|\+*(?:\w+\.)+|-(?:[a-z]|-[a-z_-]+)=?(?:\w+,)?|Environment=)(?=[A-Z]\w*=)"
)
_COMMAND_LINE = re.compile(r"""(?:--[\w-]+=)?["'][A-Z]\w*=(?:["']|\S+\s+[^-\s])""")
_FLAG = re.compile(r"[-‐‑‒–—―−]{1,2}xla_")  # noqa: RUF001
_FLAGS = re.compile(rf"[\s{COMPUTED}]*{_FLAG.pattern}")
_OF_A_FILE = re.compile(
    rf"\AXLA_FLAGS=[^\0]*(?:\0{_FLAG.pattern}[^\0]*)+"
)  # whose values end with their lines
_LAUNCHES = re.compile(
    r"(?:.*/)?(?:python[\d.]*|srun|torchrun|mpirun|mpiexec|jsrun|docker|podman|bash|sh|cat|tee|FROM)|\./.+"
)
_OPENS, _CLOSES = ("if", "case", "for", "while", "until", "{"), ("fi", "esac", "done", "}")
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_MISSPELT = re.compile(r"(?!XLA_FLAGS$)(?=.*X)[XLA]{2,4}_*F[LAG]{2,4}S*")
_SETTING = re.compile(r"(NCCL|XLA_PYTHON_CLIENT|XLA_CLIENT|XLA_PJRT|JAX|jax|xla_[cg]pu)_")
_OF_MAKE = re.compile(
    r"(?m)^([ \t]*(?:[\w.%-]+:[ \t]+)?(?:export[ \t]+)?[A-Z]\w*)"
    r"(?:[ \t]*[:?]=|[ \t]+(\+?)=[ \t])[ \t]*(.*?)(?:[ \t]#.*)?$"
)
_IN_QUOTES = re.compile(  # setenv("A", "b"), ENV["A"] = "b", {"A": "b"}
    r"""(?<!getenv\()(?<!get\()(?<!ENV, )\\?["']([A-Z]\w*)\\?["'][ \])]*[,:=] *"""
    r"""((\\?["']).*?\3|[\d.]+)( *(?:\.\.|[+*<&]))?[ \t,;)\]}]*"""
)
_PAIR = re.compile(
    r"""\bname\s*[:=]\s*["']?([A-Z]\w*)["']?,?\s+value\s*()[:=][ \t]*"""
    r"""("[^"\n]*"|'[^'\n]*'|[^\s>|#](?:[^\n#]*[^\s#])?)"""
)
_OF_PROTO = re.compile(r"(?m)^xla_(?!flags)\w+(?:: | \{)")
UNREAD = {
    "replaced": "a later assignment of the same variable replaces it, or `unset` removes it: "
    "remove it",
    "outside": "it stands outside of the quotes, so it is no part of the value: write the whole "
    "value in quotes",
    "argument": "an argument of the program, of which XLA sees only what the program hands on: "
    "put it into XLA_FLAGS",
    "late": "it is set after JAX has started its backend, which reads it once: set it above the "
    "first use of jax",
    "misspelt": "nobody reads this variable: write XLA_FLAGS",
    "srun": "srun --export without ALL passes on only what it names: write --export=ALL,...",
    "docker": "docker run passes on only what -e names: add -e NAME",
}
"""Stand in place of a variable's name, with why the program never reads what is set, and what to
do.
"""

_ASKED = ("get", "getenv", "pop")
_SCRIPT = re.compile(r"\bexport [A-Z]|\A#!|^#SBATCH", re.MULTILINE)
_STARTS = re.compile(
    r"jax\.(?:(?:local_)?device(?:s|_count|_put)|default_backend|process_index|random\.\w+)$"
    r"|(?:jnp|jax\.numpy)\.(?:zeros|ones|full|array|asarray|arange|eye)$"
)
"""Calls that start JAX's backend."""

_RUNS = ("system", "run", "Popen", "call", "check_call", "check_output")


def is_setting(variable: str) -> bool:
    """Returns whether a variable is one of the catalogue, or looks like one."""
    return variable in load_catalog() or _SETTING.match(variable) is not None


def is_misspelt(variable: str) -> bool:
    """Returns whether a variable is nearly called XLA_FLAGS."""
    return _MISSPELT.fullmatch(variable) is not None


def read_assignments(text: str) -> list[tuple[str, str]]:
    """Reads the variables that a text sets, in order, with XLA's flags under ``XLA_FLAGS``.

    A value that a later one takes up is not repeated; what the program computes is `COMPUTED`.
    """
    reader = _Reader()
    with contextlib.suppress(RecursionError):
        reader.read(text.replace("\r\n", "\n"))
    pairs = list(dict.fromkeys(assignment.pair for assignment in reader.assignments))
    words = [
        " ".join(value.split()) + " " * bool(re.search(r"=\S+\s*$", value)) for _, value in pairs
    ]
    return [
        pair
        for at, pair in enumerate(pairs)
        if not (
            _FLAG.search(pair[1])
            and any(words[at] in later for later in words[at + 1 : at + MOST_LATER])
        )
    ]


@dataclass(slots=True)
class _Assignment:
    """What a text sets, and if the program never reads it, why: a key of `UNREAD`."""

    name: str
    value: str
    unread: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """The variable with its value; what holds flags is `XLA_FLAGS`."""
        variable = self.name if is_setting(self.name) else "XLA_FLAGS"
        if not self.unread:
            return variable, self.value
        is_flags = variable == "XLA_FLAGS" and _FLAGS.match(self.value)
        return self.unread, self.value if is_flags else f"{self.name}={self.value}"


class _Reader:
    """What has been set so far, by whichever language."""

    def __init__(self) -> None:
        self.assignments: list[_Assignment] = []
        self._values: dict[str, str] = {}
        self._loose: list[str] = []
        self._left = MOST_EXPANDED
        self._parts: set[str] = set()
        self._replaceable: dict[str, list[_Assignment]] = {}
        """What a later assignment of the same variable replaces: no program has run since, or may
        have.
        """
        self._branches = 0
        self._has_started = False
        """Whether JAX has started its backend."""

    def read(self, text: str) -> None:
        """Reads a text in the language that it parses as; without one, as a shell does."""
        if blocks := _FENCED.findall(text):
            for block in [*blocks, _FENCED.sub("", text)]:
                self._replaceable.clear()
                self.read(textwrap.dedent(block))
        elif _OF_PROTO.search(text):
            for name, values in parse_text_proto(text).items():
                value = ",".join(values).strip("'")
                self._read_word(f"--{name}={value}")
        elif (tree := _python(text)) is not None:
            self._shell("\n".join(re.findall(r"(?m)^[ \t]*[%!](.*)", text)))
            self._visit(tree)
        elif data := _data(text) or _data(
            re.sub(r"(?m)(?:^|(?<=[ \t]))//.*", "", text)
        ):  # JSON's remarks
            self._branches += 1
            self._walk(data, "", set())
            self._branches -= 1
        else:
            self._read_paragraphs(text)
        self._end_loose()

    def _read_paragraphs(self, text: str) -> None:
        """Reads each paragraph of a part of a Python file as such; all others as a shell does."""
        others = []
        for paragraph in re.split(r"\n[ \t]*\n", text):
            tree = _python(textwrap.dedent(paragraph))
            if tree is None:
                others.append(paragraph)
            else:
                self._visit(ast.ClassDef("", [], [], tree.body, []))
        self._shell(_PAIR.sub(_of_shell, "\n\n".join(others)))

    def _end_loose(self) -> None:
        if self._loose:
            self.assignments.append(_Assignment("XLA_FLAGS", " ".join(self._loose)))
            self._loose.clear()

    def _known(self, name: str, default: str = COMPUTED) -> str:
        value = self._values.get(name, default)
        self._left -= len(value)
        return value if self._left > 0 else COMPUTED

    def _set(self, name: str, value: str, *, unread: str = "") -> None:
        """Sets a variable; `unread`: why the program never reads it, a key of `UNREAD`."""
        unread = unread or ("misspelt" if is_misspelt(name) else "")
        if self._branches == 0 and not unread:
            self._unset(name)
        self._values[name] = value
        is_computed = unread == "misspelt" and value.startswith(COMPUTED)
        if _ASSIGNED.match(value) or not (is_setting(name) or _FLAGS.match(value) or is_computed):
            return
        assignment = _Assignment(name, value, unread)
        self.assignments.append(assignment)
        if self._branches == 0:
            self._replaceable.setdefault(name, []).append(assignment)

    def _unset(self, name: str) -> None:
        self._values.pop(name, None)
        for assignment in self._replaceable.pop(name, []):
            assignment.unread = assignment.unread or "replaced"

    def _drop(self, unread: str, passed_on: str) -> None:
        """Marks what was exported as never read by the program, except for variables that
        `passed_on` names.
        """
        kept = re.findall(r"\w+", passed_on)
        for name, assignments in self._replaceable.items():
            for assignment in assignments:
                if name not in kept:
                    assignment.unread = assignment.unread or unread
        self._replaceable.clear()

    # ------------------------------------------------------------------ shell, and what is written
    # like it

    def _shell(self, text: str) -> None:
        text = re.sub(r"(?m)^(?![ \t]*#)(.*)\\\n", r"\1", text)
        text = _OF_MAKE.sub(_of_shell, re.sub(r"(?m)^[ \t]*(?://|--) [^-\n].*", "", text))
        for command in re.findall(_COMMAND, text):
            self._shell(command.strip("$`"))
        text = _IN_QUOTES.sub(
            lambda found: f" {found[1]}={found[2]}{COMPUTED * bool(found[4])} ", text
        )
        text = re.sub(r"""@(["'])\n(.*?)\n\1@""", r"\1\2\1", text, flags=re.DOTALL)
        text = re.sub(r"(?m)^[ \t]*\$env:(\w+)[ \t]*=[ \t]*", r"\1=", text, flags=re.IGNORECASE)
        words: list[str] = []
        was_joined = False
        for token in _TOKEN.finditer(f"{text}\n\n"):
            if token["word"] and _COMMAND_LINE.match(token["word"]):
                self._shell(re.sub(r"^--[\w-]+=", "", self._plain(token["word"])))
            elif token["word"]:
                plain = self._plain(token["word"])
                words += (
                    plain.split() if re.fullmatch(r"\$[({]?\w+[)}]?", token["word"]) else [plain]
                )
            elif token["end"]:
                self._run(words)
                words = []
                self._branches += token["end"] in "&|"
                self._branches -= was_joined
                was_joined = token["end"] in "&|"

    def _plain(self, word: str) -> str:
        """The word without its quotes, its variables replaced."""
        found = ""
        for piece in _PIECE.findall(word):
            if piece[0] == "'" or (piece[0] == "\\" and len(piece) == 2):
                found += piece[1:].removesuffix("'")
            elif piece[0] == '"' and len(piece) > 1:
                found += re.sub(r'\\(["\\$`])', r"\1", self._expand(piece[1:-1]))
            elif piece[0] == "(":
                found += " " * found.endswith("+=")
                found += " ".join(
                    self._plain(t["word"]) for t in _TOKEN.finditer(piece[1:-1]) if t["word"]
                )
            else:
                found += self._expand(piece)
        return found

    def _expand(self, text: str) -> str:
        return _REFERENCE.sub(self._referenced, text)

    def _referenced(self, match: re.Match[str]) -> str:
        name = match[1] or match[4] or match[5] or ""
        operator = match[2]
        word = match[3]
        if operator == "+":
            return self._expand(word) if name in self._values else ""
        if name in self._values:
            return self._known(name)
        value = COMPUTED if operator is None else self._expand(word).strip("\"'")
        if operator == "=":
            self._set(name, value)
        return value

    def _run(self, words: list[str]) -> None:
        words = words[words[:1] in (["or"], ["and"]) :]
        named = next((i for i, w in enumerate(words[:-1]) if i and not w.startswith("-")), 0)
        if (
            named
            and words[0].lower().lstrip("%!") in ("env", "setenv", "set")
            and _NAME.fullmatch(words[named])
        ):
            self._set(words[named], " ".join(words[named + 1 :]))
            return
        words = _OF_A_FILE.sub(lambda found: found[0].replace("\0", " "), "\0".join(words)).split(
            "\0"
        )
        first = words[0]
        self._branches = max(
            0, self._branches + (first in _OPENS or "{" in words) - (first in _CLOSES)
        )
        if first == "unset":
            for name in words[1:]:
                self._unset(name)
        command = next((w for w in words if not _ASSIGNED.match(w)), "")
        is_launch = _LAUNCHES.fullmatch(command) is not None
        line = " ".join(words)
        if (
            is_launch
            and (exported := re.search(r"(?<!\S)--export[= ](\S+)", line))
            and "ALL" not in exported[1]
        ):
            self._drop("srun", exported[1])
        elif (
            is_launch and re.match(r"\S*(?:docker|podman) run ", line) and "--env-file" not in line
        ):
            self._drop("docker", line)
        unread = "argument" if is_launch else ""
        for word in words:
            self._read_word(word, unread)
            is_value = (
                re.match(r"(?:-\w+|--env|Environment|ENV)?[= ]?XLA_FLAGS\+?=", word) is not None
            )
            unread = "outside" if is_value and unread != "argument" else unread
        if is_launch:
            self._replaceable.clear()

    def _read_word(self, word: str, unread: str = "") -> None:
        if _FLAG.match(word):
            name, equals, value = word.partition("=")
            flag = name + equals + quote_token(value)
            if unread:
                self.assignments.append(_Assignment("XLA_FLAGS", flag, unread))
            else:
                self._loose.append(flag)
            return
        if word.startswith("--export"):  # a name without a value is that of a variable
            word = re.sub(r",[A-Z][A-Z0-9_]*(?=,|$)", "", word)
        word = re.sub(r"^--(?=jax_\w+=)", "", word)
        for part in re.split(r",\s*(?=[A-Z][A-Z0-9_]*=)", _PREFIX.sub("", word)):
            assigned = _ASSIGNED.fullmatch(part)
            if assigned is not None:
                self._set(
                    assigned[1], (self._known(assigned[1]) if assigned[2] else "") + assigned[3]
                )
            is_read = assigned is not None and (
                is_setting(assigned[1]) or _FLAGS.match(assigned[3])
            )
            if re.search(r"\s", part) and not is_read and part not in self._parts:
                self._parts.add(part)
                self._shell(part.replace("\\n", "\n").replace("%s", COMPUTED))

    # ------------------------------------------------------------------ manifests and notebooks

    def _walk(self, data: object, key: str, seen: set[int]) -> None:
        if (
            not isinstance(data, str) and id(data) in seen
        ):  # an anchor may repeat what is large, or itself
            return
        seen.add(id(data))
        match data:
            case str():
                self._read_item(data, key)
            case {"cell_type": kind, "source": source}:
                self.read("".join(map(str, source)) if kind == "code" else "")
            case {
                "winner": {"winner_version": _},
                "environment": dict(environment),
            }:  # an export of our own
                self._walk(environment, key, seen)
            case {"name": str(name), "value": str(value)}:
                self._set(name, self._expand(value))
            case dict() | list():
                pairs = (
                    data.items()
                    if isinstance(data, dict)
                    else [(f"{key}[]", value) for value in data]
                )
                for name, value in pairs:
                    self._walk(value, str(name), seen)
                    if isinstance(data, dict):
                        self._end_loose()

    def _read_item(self, text: str, key: str) -> None:
        assigned = _ASSIGNED.fullmatch(_PREFIX.sub("", text))
        if is_setting(key):
            self._set(key, self._expand(text))
        elif assigned is not None and key.lower() in ("env[]", "environment[]"):
            self._set(assigned[1], self._expand(assigned[3]))
        else:
            self._shell(text)

    # ------------------------------------------------------------------ Python

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value)
            case ast.AugAssign(target=target, value=value):
                self._assign([target], value, is_added=True)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    self._set(
                        self._value(key) if isinstance(key, ast.Constant) else "",
                        self._value(value),
                    )
            case ast.Call():
                self._visit_call(node)
            case ast.Tuple(elts=items) if [is_setting(self._value(item)) for item in items] == [
                True,
                False,
            ]:
                self._set(*map(self._value, items))
            case ast.Constant() | ast.JoinedStr() if _SCRIPT.search(self._value(node)):
                self._shell(self._value(node))
            case ast.Delete(targets=targets):
                for name in map(_named, targets):
                    self._unset(name)
        is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_doc and not isinstance(node, ast.JoinedStr):
            self._visit_children(node)

    def _visit_children(self, node: ast.AST) -> None:
        """Visits the parts of a node; what a function or class sets is not known behind it."""
        is_apart = isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
        is_branch = is_apart or isinstance(
            node, (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.IfExp)
        )
        outer = dict(self._values), self._has_started
        self._branches += is_branch
        for child in ast.iter_child_nodes(node):
            self._visit(child)
        self._branches -= is_branch
        if is_apart:
            self._values, self._has_started = outer

    def _assign(
        self, targets: Sequence[ast.AST], value: ast.AST, *, is_added: bool = False
    ) -> None:
        """Sets all targets that have a name; `is_added` behind what they have."""
        for name in filter(None, map(_named, targets)):
            before = self._known(name) if is_added else ""
            if before and isinstance(value, (ast.List, ast.Tuple)):
                before += " "
            is_late = self._has_started and not name.startswith(".")
            self._set(name, before + self._value(value), unread="late" if is_late else "")

    def _visit_call(self, node: ast.Call) -> None:
        called = _named(node.func, of_call=True)
        named = {k.arg: k.value for k in node.keywords}
        first, second = [*node.args, *filter(None, map(named.get, ("name", "value"))), None, None][
            :2
        ]
        name = (
            first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        )
        self._has_started = self._has_started or _STARTS.match(ast.unparse(node.func)) is not None
        if called in _RUNS and first is not None:
            self._shell(self._value(first))
            self._replaceable.clear()
        elif called == "pop" and ast.unparse(node.func).endswith("environ.pop"):
            self._unset(name)
        elif called in ("append", "extend") and isinstance(node.func, ast.Attribute):
            owner = _named(node.func.value)
            self._set(owner, f"{self._known(owner, '')} {self._value(first)}")
        elif second is not None and called not in _ASKED and _NAME.fullmatch(name):
            is_late = self._has_started and called in ("setdefault", "putenv", "setenv")
            self._set(name, self._value(second), unread="late" if is_late else "")
        for keyword, value in named.items():
            self._set(keyword or "", self._value(value))

    def _value(self, node: ast.AST | None) -> str:
        """The value as text, as far as it stands in the source; a list's items are joined by
        blanks.
        """
        match node:
            case ast.Constant(value=value) if value is not None:
                return str(value)
            case ast.Name() | ast.Subscript():
                return self._known(_named(node))
            case ast.JoinedStr(values=values):
                return "".join(map(self._value, values))
            case ast.FormattedValue(value=value) | ast.IfExp(body=value):
                return self._value(value)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return " ".join(map(self._value, items))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                blank = " " if isinstance(left, ast.List) or isinstance(right, ast.List) else ""
                return self._value(left) + blank + self._value(right)
            case ast.BinOp(left=left, op=ast.Mod()):
                return re.sub(r"%[^%]*?[a-zA-Z]", COMPUTED, self._value(left))
            case ast.Call():
                return self._value_of_call(node)
        return COMPUTED

    def _value_of_call(self, node: ast.Call) -> str:
        called = _named(node.func, of_call=True)
        owner = getattr(node.func, "value", None)
        first, second = [*node.args, None, None][:2]
        if called in _ASKED:
            return self._known(self._value(first), self._value(second))
        if called == "join" and owner is not None and isinstance(first, (ast.List, ast.Tuple)):
            return self._value(owner).join(map(self._value, first.elts))
        if called in ("join", "str"):
            return self._value(first)
        if called in ("strip", "rstrip", "lstrip", "replace"):
            return self._value(owner)
        return re.sub(r"\{.*?\}", COMPUTED, self._value(owner)) if called == "format" else COMPUTED


def _of_shell(match: re.Match[str]) -> str:
    """The assignment of a makefile or of TOML as a shell's."""
    head, append, value = match.groups()
    quoted = (
        value
        if value[:1] in ("'", '"')
        else '"' + " " * bool(append) + value.replace('"', '\\"') + '"'
    )
    return f"{head}{append or ''}={quoted}"


def _named(node: ast.AST, *, of_call: bool = False) -> str:
    """The name that is assigned or called: `x` of ``os.environ["x"]`` and ``jax.config.x``, `.x` of
    Python's own x.
    """
    match node:
        case ast.Name(id=name):
            return name if of_call else f".{name}"
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Attribute(attr=name) if of_call or _NAME.fullmatch(name):
            return name
    return ""


def _python(text: str) -> ast.Module | None:
    """The text as Python; None if it is none, or settings alone, which a shell may have meant as
    well.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(re.sub(r"(?m)^[ \t]*[%!].*", "", text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    speaks = any(isinstance(n, (ast.Import, ast.ImportFrom, ast.Call)) for n in ast.walk(tree))
    assigns = (
        r"""(?m)^(?:(?![A-Z]+_[A-Z_]+ )\w+|\w+: [^=\n]+) \+?= [('"\[]|^\w+ = f?(?:\"{3}|'{3})"""
    )
    return tree if speaks or re.search(assigns, text) else None


def _data(text: str) -> list[object]:
    """The documents of YAML, JSON or TOML, placeholders of templates computed; none if it is
    neither.
    """
    text = re.sub(r"(?m)^[ \t]*\{\{.*\}\}[ \t]*$", "", text)
    text = re.sub(r"\$?\{\{[^{}]*\}\}", COMPUTED, text)
    text = (
        text.expandtabs() if text.lstrip()[:1] in ("{", "[") else text
    )  # YAML has no tabs, JSON may
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(tomllib.loads(text), default=str) if re.search(r"(?m)^\[", text) else text
    try:
        loader = yaml.BaseLoader(text)  # makes texts, lists and maps only
        documents = [loader.get_data() for _ in iter(loader.check_data, False)]
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return documents if any(isinstance(d, (dict, list)) for d in documents) else []
