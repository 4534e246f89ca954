"""Keeps what ptxas makes: most kernels of a set are those of the sets before it.

Of a compilation of Llama-3-8B a third of the processor time goes to some 250 processes of ptxas, one for each kernel. A
script stands in its place that looks up what the same text, under the same options, gave before; whatever goes wrong
in it, the real one runs.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

NAME = "ptxas"
TRIAL_S = 60.0
SCRIPT = """\
#!/bin/sh
# XLA calls: ptxas TEXT -o KERNEL OPTIONS. Anything else goes to the real one, and so does what cannot be kept.
real={real} folder={kept}
[ "$2" = -o ] && text=$(sha256sum <"$1") || exec "$real" "$@"
kept="$folder/${{text%% *}} $(shift 3; echo "$*")" out=$3
if [ -f "$kept" ] && cp "$kept" "$out"; then cat "$kept said" >&2; exit 0; fi
said="$kept said $$"
true 2>/dev/null >"$said" || exec "$real" "$@"
"$real" "$@" 2>"$said"
status=$?
cat "$said" >&2
if [ $status = 0 ] && cp "$out" "$kept $$"; then mv "$said" "$kept said" && mv "$kept $$" "$kept"; fi
rm -f "$said" "$kept $$"
exit $status
"""


def keep_kernels(folder: Path) -> None:
    """Has JAX compile by a CUDA whose ptxas is the script; nothing happens where JAX names none with a ptxas.

    Args:
        folder: Made here; holds the kernels, and goes with the worker.
    """
    from jax._src import lib

    root = getattr(lib, "cuda_path", None)
    if root and stand_in(Path(root), folder):
        lib.cuda_path = str(folder)


def stand_in(root: Path, folder: Path) -> bool:
    """Makes a folder like CUDA's with the script as ptxas; False if CUDA has no ptxas, or the script does not run.

    Args:
        root: CUDA's: ``bin/ptxas``, ``nvvm/libdevice``.
        folder: Where.
    """
    real = root / "bin" / NAME
    if not real.is_file():
        return False
    try:
        (folder / "bin").mkdir(parents=True)
        (folder / "kept").mkdir()
        for path in [p for p in root.iterdir() if p.name != "bin"]:
            (folder / path.name).symlink_to(path.resolve())
        for path in [p for p in (root / "bin").iterdir() if p.name != NAME]:
            (folder / "bin" / path.name).symlink_to(path.resolve())
        script = folder / "bin" / NAME
        text = SCRIPT.format(real=shlex.quote(str(real.resolve())), kept=shlex.quote(str(folder / "kept")))
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
        # Where the folder lies no program may be allowed to run, and XLA would hold that for a fault of the set.
        done = subprocess.run([script, "--version"], capture_output=True, timeout=TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
