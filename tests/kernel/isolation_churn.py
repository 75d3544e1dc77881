"""Starts writers that apply random settings to test cgroups as fast as they can, and kills each when it is told to.

Each line that it reads, ``GROUP<tab>STATE<tab>SEED``, is a process of its own, forked from this one, which has
everything loaded that writing takes. The writer prints ``ready PID`` when its first change is in force, so that
whoever has it killed knows that there is something to restore. The next line read, whatever it is, is its SIGKILL;
``ended STATUS`` follows, of waitpid. At the end of the input a writer that is left is killed as well.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import traceback

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Keep, Limit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.isolation import Executor, Journal


def settings(rng: random.Random, cpus: list[int], memory: bool) -> Settings:
    ceilings: list[Limit | Keep] = [KEEP, NO_LIMIT, rng.randint(32 << 20, 1 << 30)]
    return Settings(
        cpus=rng.choice([KEEP, CpuSet.of(rng.sample(cpus, rng.randint(1, len(cpus))))]),
        cpu_weight=rng.choice([KEEP, IDLE, rng.randint(1, 10000)]),
        cpu_max_cores=rng.choice([KEEP, rng.uniform(0.05, 2.0)]),
        memory_low_bytes=rng.choice([KEEP, rng.randint(0, 64 << 20)]) if memory else KEEP,
        memory_high_bytes=rng.choice(ceilings) if memory else KEEP,
    )


async def write(group: str, state: str, seed: int) -> None:
    fs = RealFs()
    hierarchies = discover(fs)
    specs = [
        WorkloadSpec("lra", Kind.LRA, f"{group}/lra"),
        WorkloadSpec("batch", Kind.BATCH, f"{group}/batch"),
    ]
    cpuset = hierarchies.of("cpuset")
    assert cpuset is not None
    file = "cpuset.cpus" if cpuset.version == 1 else "cpuset.cpus.effective"
    cpus = list(CpuSet.parse(fs.read(cpuset.path(group, file)).decode()))
    memory = hierarchies.of("memory")
    has_memory = memory is not None and memory.version == 2
    rng = random.Random(seed)
    executor = Executor(fs, hierarchies, Journal(state))
    target = {"batch": Settings(cpus=CpuSet.of(cpus[:1]), cpu_weight=IDLE, cpu_max_cores=0.5)}
    while True:
        applied = await executor.apply(executor.plan(target, specs))
        if not applied.ok or executor.conflicts():
            print(f"failed: {applied} {executor.conflicts()}", flush=True)
            return
        if target.keys() == {"batch"}:
            print(f"ready {os.getpid()}", flush=True)
        target = {"lra": settings(rng, cpus, has_memory), "batch": settings(rng, cpus, has_memory)}


def fork(group: str, state: str, seed: int) -> int:
    """A writer's process; this one goes on."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(write(group, state, seed))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(1)
    return pid


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        group, state, seed = line.rstrip("\n").split("\t")
        pid = fork(group, state, int(seed))
        sys.stdin.readline()
        os.kill(pid, signal.SIGKILL)
        print(f"ended {os.waitpid(pid, 0)[1]}", flush=True)


if __name__ == "__main__":
    main()
