"""Reads which variables a script, container recipe, manifest, Python file or notebook sets."""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import re
import shlex
import textwrap
import tomllib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from autotune.model.flags import parse_text_proto, quote_token
from autotune.settings.catalog import Pair, Values, load_catalog, setting_of

COMPUTED = "…"  # placeholder in a value for what only a run of the program would tell
MOST_LATER = 200  # number of later assignments that are searched for a value
Part = ast.expr | None  # of a Python file
MOST_EXPANDED = 10_000_000  # characters; a variable may double itself

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
_ASSIGNED = re.compile(r"(?s)([A-Za-z_]\w*)(\+?)=(.*)")
_PREFIX = re.compile(
    r"^(?:--(?=jax_\w+=)"
    r"|(?:!|\w:|\+*(?:\w+\.)+|-(?:[a-z]|-[a-z_-]+)=?(?:\w+,)?|Environment=)(?=[A-Z]\w*=))"
)
# NUL separates the words of a command: `set -x NAME VALUE`, `setenv NAME VALUE`, `%env NAME VALUE`.
_SETS = re.compile(rf"(?s)[%!]*(?i:env|setenv|set)(?:\0-[^\0]*)*\0({_NAME.pattern})\0(.*)")
_COMMAND_LINE = re.compile(r"""(?:--[\w-]+=)?["'][A-Z]\w*=(?:["']|\S+\s+[^-\s])""")
_FLAG = re.compile(r"[-‐‑‒–—―−]{1,2}xla_")  # noqa: RUF001
_FLAGS = re.compile(rf"[\s{COMPUTED}]*{_FLAG.pattern}")
# A line of an env file, whose value ends with the line.
_OF_A_FILE = re.compile(rf"\AXLA_FLAGS=[^\0]*(?:\0{_FLAG.pattern}[^\0]*)+")
_PROGRAMS = r"(?:python[\d.]*|srun|torchrun|mpirun|mpiexec|jsrun)"
_LAUNCH = re.compile(
    r"(?s)(?:\w+=[^\0]*\0)*(?:cat|tee|FROM|(?P<program>(?:(?:sudo|env|su|ssh|exec|time|nohup|numactl|"
    r"nice|timeout|taskset|then|do|else|CMD|ENTRYPOINT)\0(?:.*[\0\s;])?)?(?:\./[^\0]+|(?:[^\0 ]*/)?"
    rf"(?:{_PROGRAMS}|docker|podman|bash|sh))))(?=[\0 ]|\Z)"
)
_STARTS_PROGRAM = re.compile(rf"(?m)^[ \t]*(?:exec |time |nohup )?{_PROGRAMS} ")
# A stage of a Dockerfile, not the last one, whose name no later one builds upon.
_IDLE_STAGE = re.compile(
    r"(?m)^FROM (?!.* (?i:as) +(\S+)[ \t]*\n(?s:.*)^FROM +(?:--\S+ +)?\1(?!\S)).*\n"
    r"(?:(?!FROM ).*\n)*+(?=FROM )"
)
# A here-document: its word, what follows on that line, and its lines.
_HERE_DOCUMENT = r"""(?m)<<-?\s*(["']?)(\w[\w.-]*)\1(.*)\n((?:(?!\s*\2\s*$).*\n)*+)\s*\2\s*$"""
_PLAIN = re.compile(
    r"""(?m)^[ \t]*(XLA_FLAGS|(?:NCCL|JAX|CUDA|XLA_PYTHON|XLA_CLIENT)_\w+)\+?="""
    r"""(?:"[^"]*"|'[^']*'|[^\s;&|"'$`])*[ \t]*(?:[;#].*)?$"""
)
_OPENS = ("if", "case", "for", "while", "until", "{")
_CLOSES = ("fi", "esac", "done", "}")
_FENCED = re.compile(r"(?ms)^(?:[ \t]*```|@@)[^\n]*\n(.*?)(?:^[ \t]*```|(?=^@@)|\Z)")
_MISSPELT = re.compile(r"(?!XLA_FLAGS$)(?=.*X)[XLA]{2,4}_*F[LAG]{2,4}S*")
_SETTING = re.compile(r"(NCCL|XLA_PYTHON_CLIENT|XLA_CLIENT|XLA_PJRT|JAX|jax|xla_[cg]pu)_")
_OF_MAKE = re.compile(
    r"(?m)^([ \t]*(?:[\w.%-]+:[ \t]+)?(?:export[ \t]+)?[A-Z]\w*)"
    r"(?:[ \t]*[:?]=|[ \t]+(\+?)=[ \t])[ \t]*(.*?)(?:[ \t]#.*)?$"
)
_IN_QUOTES = (  # setenv("A", "b"), ENV["A"] = "b", {"A": "b"}
    r"""(?<!getenv\()(?<!get\()(?<!ENV, )\\?["']([A-Z]\w*)\\?["'][ \])]*[,:=] *"""
    r"""((?>(\\?["']).*?\3)|[\d.]+)"""
)
_PAIR = re.compile(
    r"""\bname\s*[:=]\s*["']?([A-Z]\w*)["']?,?\s+value\s*()[:=][ \t]*"""
    r"""("[^"\n]*"|'[^'\n]*'|[^\s>|#](?:[^\n#]*[^\s#])?)"""
)
_OF_PROTO = re.compile(r"(?m)^xla_(?!flags)\w+(?:: | \{)")
_OF_PYTHON = re.compile(
    r"""(?m)^(?:(?![A-Z]+_[A-Z_]+ )\w+|\w+: [^=\n]+) \+?= [('"\[]|^\w+ = f?(?:\"{3}|'{3})"""
)
_OF_NOTEBOOK = r"(?m)^[ \t]*(?=[%!])(?:!(?=.*[;&|])|!(?!export ))?(.*)"  # !export as it is
_REMARKS = re.compile(r"(?m)(?:^|(?<=[ \t]))//.*")  # of JSON
_DIFF = re.compile(
    r"(?m)\A(?![\s\S]*^```)(?:[\s\S]*?^@@ -\d|(?:(?:[ -].*)?\n)*\+.*(?:\n(?:[ +-].*)?)*\Z)"
)
_OLD = re.compile(r"(?m)\A(?:(?!@@).*\n)+(?=@@)|^(?:\+\+\+ .*\n?|[ +]|[^\n @].*\n?)")
# What shells and PowerShell, csh, fish, cmd, systemd, notebooks write to what is read here.
_OF_SHELLS = {
    r'(?m)","(?=.*\][ \t]*$)': '" "',
    r"(?m)^([ \t]*(?:CMD|ENTRYPOINT)[ \t]*)\[(.*)\]": r"\1 \2",
    r"(?m)^(?![ \t]*#)(.*)\\\n": r"\1",
    r"(?m)^RUN (?!.*<<)(.*)$": r"RUN <<END_OF_RUN\n\1\nEND_OF_RUN",
    r"(?m)^[ \t]*(?://|--) [^-\n].*|(?<=[\"']),[ \t]*$": "",
    r"(?m)(^|;)[ \t]*(?:or|and) (?=set )": r"\1",
    r"(?m)^[ \t]*env ((?:(?:-u ?|--unset[= ])\w+ )+)": r"unset \1; env ",
    r"\b(?:APPTAINER|SINGULARITY)ENV_(?=[A-Z])": "",
    r"(?ms)^(#SBATCH[ \t]+--export[= ](NONE|NIL)\b(?!.*SLURM_EXPORT_ENV).*?^[ \t]*srun )"
    r"(?![^\n]*--export)": r"\1--export=\2 ",
    r"""(?s)@(["'])\n(.*?)\n\1@""": r"\1\2\1",
    r"(?im)^[ \t]*(?:UnsetEnvironment=|"
    r"(?:unsetenv|set -\w*e|set --erase|export -n|Remove-Item)[ \t]+)(?:Env:)?(?=\w)": "unset ",
    r"(?m)^Environment=[ \t]*$": "unset",
    r"(?im)^[ \t]*\$env:(\w+)[ \t]*=[ \t]*\$null\b": r"unset \1",
    r"(?im)^([ \t]*\$env:.*?)([\"'])[ \t]*\+[ \t]*\2": r"\1",
    r"(?im)^[ \t]*\$env:(\w+)[ \t]*(\+?)=[ \t]*": r"\1\2=",
    r"""(?im)^([ \t]*(?:set|%env|%set_env) [A-Z]\w*=)([^"'\n]+)$""": r'\1"\2"',
    r"(?m)^[ \t]*set (-\w*)a(\w*) (\w+) ": r"set \1\2 \3 $\3 ",
    rf"{_IN_QUOTES} *(?:\.\.|[+*<&])[ \t,;)\]}}]*": rf" \1=\2{COMPUTED} ",
    rf"{_IN_QUOTES}[ \t,;)\]}}]*": r" \1=\2 ",
}
_SETS_FLAGS = re.compile(r"(?:-\w+|--env|Environment|ENV)?[= ]?XLA_FLAGS\+?=")
# Launchers that pass on only the variables that they name, by the reason of `UNREAD`.
_PASSES_ON = {
    "srun": r"(?<!\S)--export[= ](?!\S*ALL)(\S+)",
    "docker": r"(?s)(?<!\S)\S*(?:docker|podman) run (?!.*--env-file)(.*)",
    "sudo": r"(?<!\S)sudo (?!(?:\S+ )*?(?:-\w*E|--preserve-env) )(?:.*--preserve-env=(\S+))?",
    "cleared": r"(?<!\S)(?:env (?:-\S+ )*?(?:-\w*i|-|--ignore-\w+)|su (?:-l?|--login)|ssh) ()",
}
# Keys that replace a variable's name; each with why the program never reads it, and what to do.
UNREAD = {
    "replaced": "another assignment replaces it, or `unset` removes it: remove it",
    "outside": "it stands outside of the quotes: write the whole value in quotes",
    "argument": "an argument of the program, not of XLA: put it into XLA_FLAGS",
    "late": "JAX had read it before: set it above the first use of jax, JAX_... above its import",
    "stage": "the last stage of the image does not build upon this one: set it below the last FROM",
    "build": "it holds while the image is built, not when it runs: write ENV NAME=VALUE",
    "not exported": "the script never exports it: write export NAME=VALUE",
    "misspelt": "nobody reads this variable: write XLA_FLAGS",
    "srun": "srun --export without ALL passes on only what it names: write --export=ALL,...",
    "docker": "docker run passes on only what -e names: add -e NAME",
    "sudo": "sudo passes on no variables: write sudo --preserve-env=NAME, or sudo NAME=VALUE",
    "cleared": "`env -i`, `su -` and `ssh` pass on no variables: set it in what they start",
    "own shell": "each line with ! has a shell of its own, which ends with it: write %env",
}
_SCRIPT = re.compile(r"(?m)\bexport [A-Z]|\A#!|^#SBATCH")
_LOST = {"ARG": "build", "RUN": "build", "LABEL": "build", "!export": "own shell"}
_KEPT = re.compile(r"set\0(?![^A-Z]*-(?:\w*x|-export)\0)(?:-[^\0]*\0)*[A-Z]+_\w+\0")
# Variables that JAX reads on its import, and modules that import it.
_AT_IMPORT = "JAX_(?!COORDINATOR|LOCAL_|NUM_|PARTITION_|PROCESS_|SLICE_)"
_JAX = r"(?:import (?:.*, )?|from )(?:jax|flax|optax|haiku|chex|equinox|orbax)\b"
# Calls that start JAX's backend.
_STARTS = re.compile(
    r"(?:jax\.)?(?:(?:local_)?device(?:s|_count|_put)|default_backend|process_index)$|jax\.random\."
    r"|.*(?:PRNGKey|random\.key)$|(?:jnp|jax\.numpy)\.(?:zeros|ones|full|eye|arange|(?:as)?array)$"
)
_RUNS = ("system", "run", "Popen", "call", "check_call", "check_output")


def is_setting(variable: str) -> bool:
    """Returns whether a variable is one of the catalogue, or looks like one."""
    return variable in load_catalog() or _SETTING.match(variable) is not None


def is_misspelt(variable: str) -> bool:
    """Returns whether a variable is nearly called XLA_FLAGS."""
    return _MISSPELT.fullmatch(variable) is not None


def after_changes(text: str) -> str:
    """The text that a diff leads to; any other text as it is."""
    return _OLD.sub("", text) if _DIFF.search(text) else text


def read_assignments(text: str) -> list[Pair]:
    """Reads the variables that a text sets, in order, with XLA's flags under ``XLA_FLAGS``.

    A value that a later one takes up is not repeated; what the program computes is `COMPUTED`.
    """
    reader = _Reader()
    with contextlib.suppress(RecursionError):
        text = after_changes(text.replace("\r\n", "\n"))
        reader.leave_out(text)
        reader.read(text)
    pairs = list(dict.fromkeys(assignment.pair for assignment in reader.assignments))
    flags = [set(value.split()) for _, value in pairs]
    return [
        pair
        for at, pair in enumerate(pairs)
        if not (
            _FLAG.search(pair[1]) and any(map(flags[at].issubset, flags[at + 1 : at + MOST_LATER]))
        )
    ]


@dataclass
class _Assignment:
    """A variable that a text sets."""

    name: str
    value: str
    unread: str = ""  # a key of `UNREAD`; empty if the program reads it

    @property
    def pair(self) -> Pair:
        """The variable, `XLA_FLAGS` for what holds flags, with its value."""
        variable = self.name if is_setting(self.name) else "XLA_FLAGS"
        if not self.unread:
            return variable, self.value
        if variable == "XLA_FLAGS" and _FLAGS.match(self.value):
            return self.unread, self.value
        return self.unread, f"{self.name}={self.value}"


def _mark(assignments: Iterable[_Assignment], unread: str) -> None:
    for assignment in assignments:
        if assignment.unread in ("", *_PASSES_ON):  # perhaps held by another launcher
            assignment.unread = unread


class _Reader:
    """The variables set so far, in whichever language."""

    def __init__(self) -> None:
        self.assignments: list[_Assignment] = []
        self._values: Values = {}
        self._loose: list[str] = []  # flags that stand in no assignment
        self._left = [MOST_EXPANDED]  # one number for all readers of parts
        self._parts: set[str] = set()
        self._replaceable: dict[str, list[_Assignment]] = {}  # no program ran since
        self._live: list[_Assignment] = []  # since the last program ran
        self._branches = 0  # depth of branches, whose assignments replace no others
        self._before_branches: list[Values] = []  # where an alternative begins
        self._has_imported = False  # jax
        self._has_started = False  # JAX's backend
        self._not_exported: set[str] = set()  # variables that a script keeps from its programs

    def _apart(self) -> _Reader:
        """A reader of what has variables of its own: a function, or a script in a script."""
        reader = copy.copy(self)
        reader._values = dict(self._values)
        reader._replaceable = {}
        reader._live = []
        return reader

    def leave_out(self, text: str) -> None:
        """Finds the variables that a shell script sets for itself alone."""
        is_script = _SCRIPT.search(text) and _STARTS_PROGRAM.search(text)
        if not is_script or re.search("allexport|<<", text):
            return
        for line in _PLAIN.finditer(text):
            name = line[1]
            exported = rf"(?m)^[ \t]*(?:export|declare -x|typeset -x)\b.*\b{name}\b|^[ \t]*set -a"
            if f"${name}" not in line[0] and not re.search(exported, text):
                self._not_exported.add(name)

    def read(self, text: str) -> None:
        """Reads a text in the language that it parses as, else as a shell does."""
        if blocks := _FENCED.findall(text):
            for block in [*blocks, _FENCED.sub("", text)]:
                self._replaceable.clear()
                self.read(textwrap.dedent(after_changes(block)))
        elif _OF_PROTO.search(text):
            for name, values in parse_text_proto(text).items():
                value = ",".join(values).strip("'")
                self._read_word(f"--{name}={value}")
        elif tree := _python(text):
            self._shell("\n".join(re.findall(_OF_NOTEBOOK, text)))
            self._visit(tree)
        elif data := _data(text) or _data(_REMARKS.sub("", text)):
            self._walk(data, "", set())
        else:
            self._read_paragraphs(text)
        self._end_loose()

    def _read_paragraphs(self, text: str) -> None:
        """Reads each paragraph of a part of a Python file as such, all others as a shell does."""
        others = []
        for paragraph in re.split(r"\n[ \t]*\n", text):
            if tree := _python(textwrap.dedent(paragraph)):
                self._visit(ast.ClassDef("", [], [], tree.body, []))
            else:
                others.append(paragraph)
        self._shell(_PAIR.sub(_of_shell, "\n\n".join(others)))

    def _end_loose(self) -> None:
        if self._loose:
            self.assignments.append(_Assignment("XLA_FLAGS", " ".join(self._loose)))
            self._loose.clear()

    def _known(self, name: str, default: str = COMPUTED) -> str:
        value = self._values.get(name, default)
        self._left[0] -= len(value)
        return value if self._left[0] > 0 else COMPUTED

    def _set(self, name: str, value: str, *, is_in_process: bool = False) -> bool:
        """Sets a variable, late if JAX has read it before; returns whether it is a setting."""
        unread = ""
        is_imported = self._has_imported and re.match(_AT_IMPORT, name)
        if is_in_process and (self._has_started or is_imported):
            unread = "late"
        elif is_misspelt(name):
            unread = "misspelt"
        elif name in self._not_exported:
            unread = "not exported"
        else:
            self._unset(name)
        self._values[name] = value
        is_meant = is_setting(name) or unread == "misspelt" or _FLAGS.match(value) is not None
        if is_meant and not _ASSIGNED.match(value):
            assignment = _Assignment(name, value, unread)
            self.assignments.append(assignment)
            self._live.append(assignment)
            if self._branches == 0:
                self._replaceable.setdefault(setting_of(name), []).append(assignment)
        return is_meant

    def _unset(self, name: str) -> None:
        if self._branches == 0:
            self._values.pop(name, None)
            _mark(self._replaceable.pop(setting_of(name), []), "replaced")

    def _leave_stage(self, match: re.Match[str]) -> str:
        count = len(self.assignments)
        self._apart()._shell(match[0])
        _mark(self.assignments[count:], "stage")
        return ""

    def _shell(self, text: str) -> None:
        while _IDLE_STAGE.search(text):  # what only idle stages build upon is idle, too
            text = _IDLE_STAGE.sub(self._leave_stage, text)
        for form, simple_form in _OF_SHELLS.items():
            text = re.sub(form, simple_form, text)
        text = _OF_MAKE.sub(_of_shell, text)
        for substitution in re.findall(_COMMAND, text):
            self._shell(substitution.strip("$`"))
        text = re.sub(_HERE_DOCUMENT, lambda m: shlex.quote(f"\n{m[4]}") + m[3], text)
        command = []
        was_joined = False
        for token in _TOKEN.finditer(f"{text}\n\n"):
            word, end = token.group("word", "end")
            if word:
                plain = self._plain(word)
                if _COMMAND_LINE.match(word):
                    self._shell(re.sub(r"^--[\w-]+=", "", plain))
                elif re.fullmatch(r"\$[({]?\w+[)}]?|\"?\$\{\w+\[@\]\}\"?", word):
                    command += plain.split()
                else:
                    command.append(plain)
            elif end:
                self._run("\0".join(command))
                self._choose(end)
                command = []
                is_joined = end in "&|"
                self._branches += is_joined - was_joined
                was_joined = is_joined

    def _plain(self, word: str) -> str:
        text = ""
        for piece in _PIECE.findall(word):
            match piece[0]:
                case "'" | "\\":
                    text += piece[1:].removesuffix("'")
                case '"':
                    text += re.sub(r'\\(["\\$`])', r"\1", self._expand(piece[1:-1]))
                case "(":
                    text += " " * text.endswith("+=")
                    text += " ".join(
                        self._plain(t["word"]) for t in _TOKEN.finditer(piece[1:-1]) if t["word"]
                    )
                case _:
                    text += self._expand(piece)
        return text

    def _expand(self, text: str) -> str:
        return _REFERENCE.sub(self._referenced, text)

    def _referenced(self, match: re.Match[str]) -> str:
        name = match[1] or match[4] or match[5] or ""
        operator = match[2]
        is_set = name in self._values
        if operator == "+":
            return self._expand(match[3]) if is_set else ""
        if is_set or operator is None:
            return self._known(name)
        value = self._expand(match[3]).strip("\"'")
        if operator == "=":
            self._set(name, value)
        return value

    def _run(self, command: str) -> None:  # its words joined by NUL
        count = len(self.assignments)
        if setting := _SETS.fullmatch(command):
            self._set(setting[1], setting[2].replace("\0", " "))
            if _KEPT.match(command):
                _mark(self.assignments[count:], "not exported")
            return
        command = _OF_A_FILE.sub(lambda match: match[0].replace("\0", " "), command)
        arguments = command.split("\0")
        keyword = arguments[0]
        opens = keyword in _OPENS or "{" in arguments
        self._branches = max(0, self._branches + opens - (keyword in _CLOSES))
        self._choose(keyword)
        if keyword == "unset":
            for name in arguments[1:] or list(self._replaceable):
                self._unset(name)
        launch = _LAUNCH.match(command)
        unread = "argument" * bool(launch)
        before = list(self._live)
        for word in arguments:
            if word == "sudo":
                before = list(self._live)
            self._read_word(word, unread)
            if not launch and _SETS_FLAGS.match(word):
                unread = "outside"
        if keyword in _LOST:
            _mark(self.assignments[count:], _LOST[keyword])
        if launch:
            self._replaceable.clear()
        if launch and launch["program"]:
            self._pass_on(before, " ".join(arguments))

    def _choose(self, word: str) -> None:
        """Lets an alternative begin with the values before its `if` or `case`; `)` ends a label."""
        if word in ("if", "case"):
            self._before_branches.append(dict(self._values))
        elif word in ("fi", "esac") and self._before_branches:
            self._before_branches.pop()
        elif self._before_branches and word in ("else", "elif", ")"):
            self._values = dict(self._before_branches[-1])

    def _pass_on(self, assignments: Sequence[_Assignment], line: str) -> None:
        """Lets a program read what was set before it, less what its launcher holds back."""
        _mark(assignments, "")
        for launcher, pattern in _PASSES_ON.items():
            if passed_on := re.search(pattern, line):
                names = re.findall(r"\w+", passed_on[1] or "")
                _mark([a for a in assignments if a.name not in names], launcher)
        self._live = [a for a in assignments if a.unread in _PASSES_ON]

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
        for item in re.split(r"(?s),\s*(?=[A-Z][A-Z0-9_]*=)(?!.*+(?<=\n))", _PREFIX.sub("", word)):
            is_read = False
            if assigned := _ASSIGNED.fullmatch(item):
                name, is_added, value = assigned.groups()
                before = self._known(name) if is_added else ""
                is_read = self._set(name, before + value)
            if re.search(r"\s", item) and not is_read and item not in self._parts:
                self._parts.add(item)
                self._apart()._shell(item.replace("\\n", "\n").replace("%s", COMPUTED))

    def _walk(self, data: object, key: str, seen: set[int]) -> None:
        if isinstance(data, str):
            assigned = _ASSIGNED.fullmatch(_PREFIX.sub("", data))
            if is_setting(key):
                self._set(key, self._expand(data))
            elif assigned and key.lower() in ("env[]", "environment[]"):
                self._set(assigned[1], self._expand(assigned[3]))
            else:
                self._replaceable.clear()
                self._shell(data)
            return
        if id(data) in seen:  # an anchor may repeat what is large, or itself
            return
        seen.add(id(data))
        match data:
            case {"cell_type": kind, "source": source}:
                self.read("".join(map(str, source)) if kind == "code" else "")
            case {"winner": {"winner_version": _}, "environment": environment}:  # our own export
                self._walk(environment, key, seen)
            case {"name": str(name), "value": str(value)}:
                self._set(name, self._expand(value))
            case dict():
                for name, value in data.items():
                    self._replaceable.clear()
                    self._walk(value, str(name), seen)
                    self._end_loose()
            case list():
                for value in data:
                    self._walk(value, f"{key}[]", seen)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=value):
                self._assign([target], value)
            case ast.AugAssign(target=target, value=value):
                self._assign([target], value, target)
            case ast.Dict(keys=keys, values=values):
                for key, item in zip(keys, values, strict=True):
                    self._set(_constant(key), self._value(item))
            case ast.Call():
                self._visit_call(node)
            case ast.Tuple(elts=[name, value]) if is_setting(self._value(name)) and not is_setting(
                self._value(value)
            ):
                self._set(self._value(name), self._value(value))
            case ast.Constant() | ast.JoinedStr() if _SCRIPT.search(self._value(node)):
                self._apart()._shell(self._value(node))
                return
            case ast.Expr(value=ast.Constant()) | ast.JoinedStr():  # a docstring, a message
                return
            case ast.Subscript(ctx=ast.Del()):
                self._unset(_target(node))
            case ast.Import() | ast.ImportFrom() if re.match(_JAX, ast.unparse(node)):
                self._has_imported = True
        self._visit_children(node)

    def _visit_children(self, node: ast.AST) -> None:
        """Visits the parts of a node; what a function, class or `env=` sets is unknown after it."""
        is_branch = hasattr(node, "orelse") or isinstance(node, ast.Match)
        reader = self
        if hasattr(node, "decorator_list") or getattr(node, "arg", "") == "env":
            reader = self._apart()
        reader._branches += is_branch
        for child in ast.iter_child_nodes(node):
            reader._visit(child)
        reader._branches -= is_branch

    def _assign(self, targets: list[ast.expr], value: Part, base: Part = None) -> None:
        """Sets all targets that have a name, to each alternative of a conditional expression."""
        if isinstance(value, ast.IfExp):
            before_branches = dict(self._values)
            self._branches += 1
            for branch in (value.body, value.orelse):
                self._values = dict(before_branches)
                self._assign(targets, branch, base)
            self._branches -= 1
        elif value:
            text = self._value(ast.BinOp(base, ast.Add(), value) if base else value)
            for target in filter(_target, targets):
                self._set(_target(target), text, is_in_process="environ" in ast.unparse(target))

    def _visit_call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        called = function.rpartition(".")[2]
        name_node, value = _name_and_value(node)
        name = _constant(name_node)
        if _STARTS.match(function):
            self._has_started = True
        if called in _RUNS and name_node:
            self._apart()._shell(self._value(name_node))
            self._replaceable.clear()
        elif function.endswith(("environ.pop", "unsetenv", "delenv")):
            self._unset(name)
        elif called == "setdefault" and name in self._values:
            self.assignments.append(_Assignment(name, self._value(value), "replaced"))
        elif called in ("append", "extend") and isinstance(node.func, ast.Attribute):
            owner = _target(node.func.value)
            self._set(owner, f"{self._known(owner, '')} {self._value(name_node)}")
        elif value and called not in ("get", "getenv", "pop") and _NAME.fullmatch(name):
            in_process = function.endswith(("environ.setdefault", "putenv", "setenv"))
            self._set(name, self._value(value), is_in_process=in_process)
        for keyword in node.keywords:
            self._set(keyword.arg or "", self._value(keyword.value))

    def _value(self, node: Part) -> str:
        """The value as far as it stands in the source, items of a list joined by blanks."""
        match node:
            case ast.Constant(value=value) if value is not None:
                return str(value)
            case ast.Name() | ast.Subscript():
                return self._known(_target(node))
            case ast.JoinedStr(values=values):
                return "".join(map(self._value, values))
            case ast.FormattedValue(value=value) | ast.IfExp(body=value):
                return self._value(value)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return " ".join(map(self._value, items))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                is_list = bool({type(left), type(right)} & {ast.List, ast.Tuple})
                return self._value(left) + " " * is_list + self._value(right)
            case ast.BinOp(left=left, op=ast.Mod()):
                return re.sub(r"%[^%]*?[a-zA-Z]", COMPUTED, self._value(left))
            case ast.Call():
                return self._value_of_call(node)
        return COMPUTED

    def _value_of_call(self, node: ast.Call) -> str:
        owner = getattr(node.func, "value", None)
        argument, default = _name_and_value(node)
        match ast.unparse(node.func).rpartition(".")[2]:
            case "get" | "getenv" | "pop":
                return self._known(self._value(argument), self._value(default))
            case "join" if owner and isinstance(argument, (ast.List, ast.Tuple)):
                return self._value(owner).join(map(self._value, argument.elts))
            case "join" | "str":
                return self._value(argument)
            case "strip" | "rstrip" | "lstrip" | "replace":
                return self._value(owner)
            case "format":
                return re.sub(r"\{.*?\}", COMPUTED, self._value(owner))
        return COMPUTED


def _name_and_value(node: ast.Call) -> list[Part]:
    """The first two arguments of a call, by place or as `name` and `value`; None if missing."""
    by_name = {keyword.arg: keyword.value for keyword in node.keywords}
    return [*node.args, *filter(None, map(by_name.get, ("name", "value"))), None, None][:2]


def _of_shell(match: re.Match[str]) -> str:
    """The assignment of a makefile or of TOML as a shell's."""
    name, appends, value = match.groups("")
    if value[:1] not in ("'", '"'):
        escaped = value.replace('"', '\\"')
        value = f'"{" " * bool(appends)}{escaped}"'
    return f"{name}{appends}={value}"


def _target(node: ast.AST) -> str:
    """The name that is set: `x` of ``os.environ["x"]`` and ``config.x``, `.x` of Python's own x."""
    match node:
        case ast.Name(id=name):
            return f".{name}"
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Attribute(attr=name) if _NAME.fullmatch(name):
            return name
    return ""


def _constant(node: Part) -> str:
    """The text that a node is; empty if it is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
    return ""


def _python(text: str) -> ast.Module | None:
    """The text as Python; None for settings alone, which may be meant for a shell."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(re.sub(r"(?m)^[ \t]*[%!].*", "", text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    speaks = {ast.Import, ast.ImportFrom, ast.Call} & set(map(type, ast.walk(tree)))
    return tree if speaks or _OF_PYTHON.search(text) else None


def _data(text: str) -> list[object]:
    """The documents of YAML, JSON or TOML, with placeholders of templates computed; else none."""
    text = re.sub(r"(?m)^[ \t]*\{\{.*\}\}[ \t]*$", "", text)
    text = re.sub(r"\$?\{\{[^{}]*\}\}", COMPUTED, text)
    if text.lstrip().startswith(("{", "[")):  # YAML has no tabs, JSON may
        text = text.expandtabs()
    if re.search(r"(?m)^\[", text):
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(tomllib.loads(text), default=str)
    try:
        loader = yaml.BaseLoader(text)  # makes texts, lists and maps only
        documents = [loader.get_data() for _ in iter(loader.check_data, False)]
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return documents if any(isinstance(d, (dict, list)) for d in documents) else []
