"""A SLURM cluster and PostgreSQL on this machine: real daemons that end with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1
SLURM_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo")

SLURM_CONF = """
ClusterName=sandbox
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdPidFile={root}/%n.pid
SlurmdLogFile={root}/%n.log
SlurmdSpoolDir={root}/%n
StateSaveLocation={root}/state
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0,requeue_delay=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=6
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=600
GresTypes=gpu
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=gpu Nodes=ALL Default=YES MaxTime=2:00:00 State=UP PriorityTier=1 GraceTime=4
PartitionName=urgent Nodes=ALL MaxTime=2:00:00 State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing_slurm() -> list[str]:
    """SLURM's programs that are not installed here."""
    return [name for name in SLURM_PROGRAMS if shutil.which(name, path=_PATH) is None]


class Slurm:
    """A cluster of virtual nodes with fake GPUs; nodes are called 127.0.0.N, so no DNS is needed.

    Args:
        root: An empty folder for configuration, state and logs.
        node_count: Virtual nodes.
        gpu_count: GPUs of each (character devices that nobody opens).
    """

    def __init__(self, root: Path, *, node_count: int = 4, gpu_count: int = 8) -> None:
        self.root = root
        self.nodes = [f"127.0.0.{i + 1}" for i in range(node_count)]
        self.env = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(root / "slurm.conf")}
        self._gpu_count = gpu_count
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Slurm:
        """Starts all daemons and waits until every node is idle."""
        self._configure()
        self._start("slurmctld", ["slurmctld", "-D", "-f", self.env["SLURM_CONF"]])
        for node in self.nodes:
            self.start_node(node)
        try:
            wait_for(
                lambda: self.states() == dict.fromkeys(self.nodes, "idle"),
                "all nodes are idle",
                limit_s=30,
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Cancels all jobs and ends the daemons."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            subprocess.run(
                ["scancel", "--state=RUNNING"],
                env=self.env,
                check=False,
                timeout=10,
                capture_output=True,
            )
            subprocess.run(
                ["scancel", "--state=PENDING"],
                env=self.env,
                check=False,
                timeout=10,
                capture_output=True,
            )
            wait_for(lambda: not self.call("squeue", "-h").strip(), "no job is left", limit_s=15)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def call(self, *command: str, check: bool = True) -> str:
        """Runs one of SLURM's commands and gives what it prints."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, timeout=60
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """State of each node, as `sinfo` words it."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%N %T"],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        return dict(line.split() for line in done.stdout.splitlines())

    def job_state(self, job: str) -> str:
        """State of a job, such as RUNNING or COMPLETED."""
        return self.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node."""
        self._start(node, ["slurmd", "-D", "-N", node, "-f", self.env["SLURM_CONF"]])

    def kill_node(self, node: str) -> None:
        """Kills the daemon of a node and everything that runs there, as a power cut does."""
        self.signal_node(node, signal.SIGKILL)
        self._daemons[node].wait()

    def signal_node(self, node: str, number: signal.Signals) -> None:
        """Sends a signal to the daemon of a node and to everything that runs there."""
        below = _below(self._daemons[node].pid)
        for pid in [self._daemons[node].pid, *_steps_of(node, self.env["SLURM_CONF"]), *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until_back(self, node: str) -> None:
        """Waits until jobs can run on a node again."""
        good = ("idle", "mixed", "allocated")
        wait_for(lambda: self.states()[node] in good, f"{node} is one of {good}; {self.states()}")

    def _start(self, name: str, command: list[str]) -> None:
        output = (self.root / f"{name}.out").open("wb")
        self._daemons[name] = subprocess.Popen(
            command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_die_with_parent,
        )
        output.close()

    def _configure(self) -> None:
        for name in ("state", *self.nodes):
            (self.root / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        lines = [
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
            f"CPUs={self._gpu_count} "
            f"RealMemory=4000 Gres=gpu:{self._gpu_count} State=UNKNOWN"
            for n in self.nodes
        ]
        text = SLURM_CONF.format(
            host=host,
            port=free_port(),
            root=self.root,
            user=pwd.getpwuid(os.getuid()).pw_name,
            nodes="\n".join(lines),
        )
        (self.root / "slurm.conf").write_text(text)
        gres = f"AutoDetect=off\nNodeName={','.join(self.nodes)} Name=gpu File={self._devices()}\n"
        (self.root / "gres.conf").write_text(gres)
        (self.root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _devices(self) -> str:
        """Files that pass for GPUs: SLURM wants character devices whose names end in a number."""
        if os.getuid() != 0:
            return f"/dev/tty[0-{self._gpu_count - 1}]"
        for i in range(self._gpu_count):
            os.mknod(self.root / f"nvidia{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return f"{self.root}/nvidia[0-{self._gpu_count - 1}]"


class Postgres:
    """A PostgreSQL server with one empty database, on a Unix socket and on loopback.

    Args:
        root: An empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.url = f"postgresql+psycopg://autotune@127.0.0.1:{self.port}/autotune"
        self._user: list[str] = []

    @staticmethod
    def programs() -> Path | None:
        """Where the server's programs are, or None."""
        found = sorted(
            Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name)
        )
        return found[-1] if found and (found[-1] / "initdb").exists() else None

    def __enter__(self) -> Postgres:
        """Makes and starts the server."""
        if os.getuid() == 0:  # initdb refuses root
            shutil.chown(self.root, "postgres")
            self._user = ["runuser", "-u", "postgres", "--"]
        self._call(
            "initdb", "-D", str(self.root / "data"), "-A", "trust", "-U", "autotune", "--no-sync"
        )
        self.start()
        self._call(
            "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "autotune", "autotune"
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the server."""
        self.stop()

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.root} -c fsync=off"
        log = str(self.root / "server.log")
        self._call(
            "pg_ctl",
            "-D",
            str(self.root / "data"),
            "-l",
            log,
            "-w",
            "-t",
            "30",
            "-o",
            options,
            "start",
        )

    def stop(self) -> None:
        """Stops the server as `systemctl restart` does: connections are cut."""
        self._call("pg_ctl", "-D", str(self.root / "data"), "-m", "fast", "-w", "stop")

    def _call(self, program: str, *arguments: str) -> None:
        folder = self.programs()
        assert folder is not None
        command = [*self._user, str(folder / program), *arguments]
        # No pipes: the server inherits what its starter has, and would hold them open.
        subprocess.run(
            command,
            cwd="/",
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def free_port() -> int:
    """A port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, *, limit_s: float = 60.0) -> None:
    """Waits until something is so.

    Raises:
        AssertionError: If it is not within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s in vain until {what}"
        time.sleep(0.1)


_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _processes() -> Iterator[tuple[int, int, str]]:
    """Process number, parent's number and command of every process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                command = (folder / "environ").read_bytes().decode(errors="replace")
                yield int(folder.name), parent, command


def _below(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _processes():
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _steps_of(node: str, conf: str) -> list[int]:
    """Step daemons of a cluster's node and all below them, which have left the node's daemon."""
    marks = (f"\0SLURMD_NODENAME={node}\0", f"\0SLURM_CONF={conf}\0")
    parents = {
        parent for _, parent, env in _processes() if all(mark in f"\0{env}\0" for mark in marks)
    }
    daemons = [p for p in parents if p > 1 and "slurmstepd" in _name(p)]
    return [pid for daemon in daemons for pid in (daemon, *_below(daemon))]


def _name(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
