"""Applies random settings to test cgroups as fast as it can until it is killed: ``GROUP STATE SEED``.

Prints one line when the first change is in force, so that whoever kills it knows that there is something to restore.
"""

from __future__ import annotations

import asyncio
import random
import sys

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


async def main(group: str, state: str, seed: int) -> None:
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
            print("ready", flush=True)
        target = {"lra": settings(rng, cpus, has_memory), "batch": settings(rng, cpus, has_memory)}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
