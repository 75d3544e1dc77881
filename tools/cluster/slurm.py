"""A Slurm controller and node daemons as child processes, on random ports of loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools.cluster.control_plane import free_ports
from tools.cluster.engines import NoProgram

READY_S: Final = 60.0
STOP_S: Final = 5.0
CORES: Final = 4
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Slurm:
    """Controller and nodes n1, n2 ... with four cores each, in a folder of its own.

    ``scripts``: a folder with a prolog and an epilog, for nodes that keep their jobs in control groups of version 1;
    None: neither.

    Raises:
        NoProgram: Slurm is not installed, or this user is not root.
    """

    def __init__(self, folder: Path, nodes: int = 2, scripts: Path | None = None) -> None:
        for name in ("slurmctld", "slurmd", "scontrol", "sbatch"):
            if shutil.which(name, path=_PATH) is None:
                raise NoProgram(f"{name} is not installed (packaging/apt-install cluster)")
        if os.geteuid() != 0:
            raise NoProgram("Slurm's daemons here want root")
        self.folder, self._nodes, self._has_groups = folder, nodes, scripts is not None
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir(parents=True)
        control, *ports = free_ports(nodes + 1)
        host = socket.gethostname()
        text = f"""\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
KillWait=2
PartitionName=batch Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
        for number, port in enumerate(ports, 1):
            text += (
                f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES} SocketsPerBoard=1 "
                f"CoresPerSocket={CORES} RealMemory=1000\n"
            )
        constrained = ""
        if scripts is not None:
            text = text.replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup")
            text += f"Prolog={scripts}/prolog\nEpilog={scripts}/epilog\n"
            constrained = "ConstrainCores=yes\n"
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n{constrained}")

    @property
    def environment(self) -> dict[str, str]:
        """Environment for programs that use this cluster."""
        return {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": _PATH}

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        self.start_controller()
        for number in range(1, self._nodes + 1):
            self.start_node(number)
        ends = time.monotonic() + READY_S
        while self.run("sinfo", "-h", "-N", "-o", "%t").split().count("idle") < self._nodes:
            if time.monotonic() > ends:
                raise RuntimeError(f"Slurm is not ready after {READY_S:.0f} s: {self.folder}")
            time.sleep(0.2)

    def start_controller(self) -> None:
        """Start the controller; its state survives a restart."""
        self._run("controller", "slurmctld", "-D")

    def start_node(self, number: int) -> None:
        """Start the daemon of a node; its jobs survive a previous daemon."""
        (self.folder / f"spool.n{number}").mkdir(exist_ok=True)
        self._run(f"n{number}", "slurmd", "-D", "-N", f"n{number}")

    def stop(self, *names: str) -> None:
        """End these processes, or all of them after their jobs."""
        if not names:
            subprocess.run(["scancel", "--full", "-u", "root"], env=self.environment, timeout=10, check=False)
            ends = time.monotonic() + STOP_S
            while self.run("squeue", "-h").strip() and time.monotonic() < ends:
                time.sleep(0.2)
        for name in names or tuple(reversed(self._running)):
            process = self._running.pop(name, None)
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if not names and self._has_groups:
            # slurmd leaves its own groups behind.
            for group in Path("/sys/fs/cgroup").glob("*/slurm_n[0-9]*"):
                for folder in sorted((group, *group.glob("**/")), reverse=True):
                    with suppress(OSError):
                        folder.rmdir()

    def run(self, *command: str) -> str:
        """Output of a Slurm command; empty if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
