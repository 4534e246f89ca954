"""Which names may ever be a setting, with which values: the one list for what is read, written or put in force.

Settings come from files of other people (run directories, exports, libraries), and end in the environment of a process.
So the list says what may pass, never what may not: a name that nobody thought of is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from autotune.model.errors import SettingError
from autotune.model.secrets import is_secret_name

_XLA_NAME = re.compile(r"xla_[a-z0-9_]+")
_JAX_NAME = re.compile(r"jax_[a-z0-9_]+")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")

OPTION = "option."
"""Starts the name under which an option of the workload is part of a set: ``option.batch``."""
_OPTION_NAME = re.compile(r"option\.[A-Za-z_][A-Za-z0-9_]{0,63}")

_VARIABLE = re.compile(
    r"NCCL_[A-Z0-9_]+|JAX_[A-Z0-9_]+|XLA_(PYTHON_)?CLIENT_[A-Z0-9_]+|PJRT_NPROC|NPROC"
    r"|TF_(GPU_ALLOCATOR|CPP_MIN_LOG_LEVEL|FORCE_[A-Z0-9_]+|CUDNN_[A-Z0-9_]+)"
    r"|CUDA_(DEVICE_MAX_CONNECTIONS|DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING|VISIBLE_DEVICES)"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS|OMP_(DYNAMIC|PLACES|PROC_BIND|SCHEDULE|WAIT_POLICY)|FI_PROVIDER|FI_EFA_[A-Z0-9_]+"
    r"|NVTE_[A-Z0-9_]+|NVSHMEM_[A-Z0-9_]+|UCX_(TLS|NET_DEVICES|MEMTYPE_CACHE|(IB|MAX|RC|RNDV)_[A-Z0-9_]+)"
    r"|MALLOC_(ARENA_MAX|ARENA_TEST|MMAP_MAX_|MMAP_THRESHOLD_|PERTURB_|TOP_PAD_|TRIM_THRESHOLD_)|GLIBC_TUNABLES"
)
"""Variables that steer XLA, JAX, NCCL and other transports, Transformer Engine, threads or the allocator."""

_REACHES_OUT = re.compile(
    r"(^|_)(ADDR|ADDRESS|COMM_ID|CONF|DIR|DUMP|FILE|FILENAME|LIB|LIBRARY|LIBRARIES|PATH|PLUGIN|PLUGINS|TO)(_|$)"
)
"""Of those, what names a library to load, a file to write or read, or another machine to talk to."""

_FILE_OPTION = re.compile(
    r"(^|_)(dir|directory|dump|dumping|dumps|file|filename|(?<!fast_)path|plugins?)(_|$)|_(to|from)$"
    r"|^jax_\w*address|xla_backend_extra_options|xla_gpu_(asm|ptx_compiler)_extra_flags"
)
"""XLA flags and JAX options that write or read files or load code: found in all of the catalogue, and by their names in
builds to come. The options for LLVM and for the assembler can name files, too."""


PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
KERNELS = "xla_gpu_load_autotune_results_from"
DUMPED_KERNELS = "xla_gpu_dump_autotune_results_to"
ARTEFACT_SETTINGS = (PROFILE, KERNELS)
"""Settings whose file may be an artefact of a winner: what a step's instructions take, which kernels were chosen."""

_ARTEFACT = re.compile(r"artefact:[0-9a-f]{64}")


def is_artefact(name: str, value: str) -> bool:
    """Whether a setting stands for an artefact, which is named by its content: see `autotune.model.artefacts`."""
    return name in ARTEFACT_SETTINGS and _ARTEFACT.fullmatch(value) is not None


def kind_of(name: str) -> str:
    """How a setting reaches the process: ``"xla"``, ``"jax"``, ``"env"``, or as an ``"option"`` of the workload.

    Raises:
        SettingError: If the name has none of the four forms, or is a variable that is not on the list.
    """
    if _XLA_NAME.fullmatch(name):
        return "xla"
    if _JAX_NAME.fullmatch(name):
        return "jax"
    if _OPTION_NAME.fullmatch(name):
        _refuse_secret(name)
        return "option"
    if not _ENV_NAME.fullmatch(name):
        raise SettingError(
            f"a setting must be named like xla_gpu_..., jax_... or NCCL_PROTO but got {name!r:.200}; "
            "write it without dashes and without a value"
        )
    _refuse_secret(name)
    if not is_variable(name):
        raise SettingError(
            f"a study may set what is known to steer XLA, JAX, NCCL or the allocator but {name:.200} changes which "
            "program runs, or is not known to steer them; take it out of the settings"
        )
    return "env"


def _refuse_secret(name: str) -> None:
    if is_secret_name(name.removeprefix(OPTION)):
        raise SettingError(
            f"settings are recorded and exported, so none must be a secret, but {name:.200} is one by its name; set it "
            "in the environment of your call instead: programs inherit it, and it is never recorded"
        )


def is_variable(name: str) -> bool:
    """Whether an environment variable may be a setting."""
    return _VARIABLE.fullmatch(name) is not None and _REACHES_OUT.search(name) is None


def refuse_unprintable(name: str, value: str) -> None:
    """Refuses a value that could end a line, move a terminal's cursor, or that no environment can carry.

    In an option, which is JSON, such a character may stand behind a backslash.

    Raises:
        SettingError: If it holds anything but printable text.
    """
    for text in (value, *(_texts(value) if name.startswith(OPTION) else ())):
        if not text.isprintable():
            odd = next(c for c in text if not c.isprintable())
            raise SettingError(
                f"the value of {name} must be printable text (no NUL, tab, line end or other control character) but "
                f"holds {odd!a}; write it without"
            )


def _texts(value: str) -> Iterator[str]:
    """All texts in a value that is JSON, names in tables among them; none where it is not."""
    try:
        left = [json.loads(value)]
    except (ValueError, RecursionError):
        return
    while left:
        found = left.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, list):
            left += found
        elif isinstance(found, dict):
            left += [*found, *found.values()]


def refuse_reaching_out(names: Iterable[str]) -> None:
    """Refuses settings that write or read files or load code: nothing that is handed on to others may hold one.

    In one's own study they are legal, as `xla_dump_to` is for a look at the program. An artefact reaches nowhere: it
    is named by its content.

    Args:
        names: Of settings; as a mapping, with their values.

    Raises:
        SettingError: If there is one, with its name.
    """
    values: Mapping[str, str] = names if isinstance(names, Mapping) else {}
    reaching = [n for n in names if kind_of(n) in ("xla", "jax") and _FILE_OPTION.search(n)]
    if found := [n for n in reaching if not is_artefact(n, values.get(n, ""))]:
        raise SettingError(
            f"what is handed on must not write or read files or load code but {', '.join(found)} can; "
            "take it out of the study and prove the rest again"
        )
