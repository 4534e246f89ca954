#!/bin/sh
# Makes a virtual environment with a pip that knows dependency groups. Usage: make_env.sh FOLDER
set -eu
folder=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "autotune needs Python 3.11 or newer but $python is $("$python" --version 2>&1); name another: make PYTHON=python3.12 ..." >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing Debian's $package, which python needs to make an environment"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    else
        echo "python needs Debian's $package to make an environment: sudo apt-get install $package" >&2
        exit 2
    fi
fi
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
