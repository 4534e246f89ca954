"""Becomes a command that the kernel ends with its caller: ``leash.py CALLER COMMAND ...``.

A script that is killed could not end what it started, and that would hold the GPU and the run
directory.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])
