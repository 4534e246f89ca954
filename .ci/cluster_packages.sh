#!/bin/sh
# SLURM and PostgreSQL for the tests of tests/cluster: Debian packages, installed where that may be done, never started.
set -eu
for program in slurmctld slurmd srun; do
    PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || missing=slurm
done
[ -d /usr/lib/postgresql ] || missing="${missing:-} postgresql"
[ -n "${missing:-}" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$missing: not installed, and only root can on a Debian machine: the tests that need them skip" >&2
    exit 0
fi
apt-get update -qq
# A service that the package would start is of no use here: each test makes its own.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client postgresql >/dev/null
