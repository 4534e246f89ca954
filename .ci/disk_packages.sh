#!/bin/sh
# FUSE for the tests of failing disks and power cuts: a Debian package, installed where that may be done.
set -eu
PATH="$PATH:/usr/sbin"
command -v fusermount3 >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "fuse3: not installed, and only root can on a Debian machine: the tests that need it skip" >&2
    exit 0
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends fuse3 >/dev/null
