"""A simulated host of two sockets with resctrl and without a PMU, and applications that only resctrl can help.

Batch slows an application down through cache and memory bandwidth alone, by what the control group allows in which
batch's threads are: the rule of ``tests/rdt/kit/app.py``, on the simulated tree. Each one tells its latency in a
file, every 0.4 s, with a scatter of 1 % by default. Its CPU time says nothing, nor do its threads wait.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perphd.agent.composition import build_agent
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.domain.allocation import Allocation
from perphd.domain.decision import Decision
from perphd.domain.workload import Kind, Mode, Objective, SliSpec, WorkloadSpec
from perphd.monitor.sli import open_source
from perphd.sim.events import Event
from perphd.sim.host import Arrival, SimHost
from perphd.sim.kernel.resctrl import MOUNT_POINT
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra

WAYS = 11
ALONE_MS, TARGET_MS = 16.0, 24.0
TELLS_S, SCATTER = 0.4, 0.01
CACHE_SHARE = BANDWIDTH_SHARE = 0.75
"""How much longer a request takes beside batch that may have all of it."""


@dataclass(frozen=True)
class App:
    """An application and the batch jobs that slow it down, the worst of them; in these L3 domains."""

    name: str = "app"
    jobs: tuple[str, ...] = ("hog",)
    cpus: str = "0-3"
    domains: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Job:
    """Batch on these CPUs that comes at this time."""

    name: str = "hog"
    cpus: str = "0-3"
    threads: int = 2
    arrives_s: float | None = None


class ContendedHost:
    """The host with a daemon on it that starts at 0. ``arrives_s``: when batch comes that has no time of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        arrives_s: float = 1.0,
        apps: Sequence[App] = (App(),),
        jobs: Sequence[Job] = (Job(),),
        events: Sequence[Event] = (),
        target_ms: float = TARGET_MS,
        alone_ms: float = ALONE_MS,
        resctrl: bool = True,
        scatter: float = SCATTER,
        seed: int = 0,
    ) -> None:
        self.target_ms, self.alone_ms, self.scatter = target_ms, alone_ms, scatter
        self.apps, self.jobs = tuple(apps), tuple(jobs)
        works: list[Lra | Batch] = [
            Lra(
                a.name,
                f"/t/{a.name}",
                rate_per_s=60.0,
                service_ms=10.0,
                serial_ms=0.05,
                wait_ms=1.0,
                threads=4,
            )
            for a in apps
        ]
        works += [Batch(job.name, f"/t/{job.name}", threads=job.threads) for job in jobs]
        coming = [
            Arrival(job.arrives_s if job.arrives_s is not None else arrives_s, job.name) for job in jobs
        ]
        self.host = SimHost(
            works, machine=Machine(2, 2, llc_ways=WAYS), events=(*coming, *events), seed=seed, resctrl=resctrl
        )
        for name, cpus in (*((a.name, a.cpus) for a in apps), *((j.name, j.cpus) for j in jobs)):
            self.host.fs.write(f"{CGROUP_ROOT}/t/{name}/cpuset.cpus", cpus.encode())
        self._folder = folder
        self._random = random.Random(seed)
        self._tells_s = 0.0
        self.agent = build_agent(
            Config(
                daemon=DaemonConfig(mode=Mode.ENFORCE, state_dir=str(folder / "state")),
                store=StoreConfig(enabled=False),
                workloads=(
                    *map(self._spec, apps),
                    *(WorkloadSpec(j.name, Kind.BATCH, f"/t/{j.name}") for j in jobs),
                ),
            ),
            fs=self.host.fs,
            sli_opener=open_source,
        )
        self.decided: dict[str, list[Decision]] = {app.name: [] for app in apps}
        self._tell()

    async def run(self, until_s: float) -> None:
        """Ticks at the pace that the daemon asks for."""
        while self.host.now_s < until_s:
            pace_s = self.agent.pace_s if self.decisions else 1.0
            now_s = self.host.now_s + pace_s
            while self._tells_s <= now_s:
                self.host.advance(self._tells_s)
                self._tell()
            self.host.advance(now_s)
            await self.agent.tick(now_s, pace_s)
            for name, decisions in self.decided.items():
                decisions.append(self.agent.decisions(name, limit=1)[0])

    @property
    def decisions(self) -> list[Decision]:
        """Of the first application."""
        return self.decided[self.apps[0].name]

    def latency_ms(self, app: App | None = None) -> float:
        """What a request takes now, without its scatter."""
        chosen = app if app is not None else self.apps[0]
        running = [name for name in chosen.jobs if self.host.running(name)]
        return self.alone_ms * max((self._slower(name, chosen.domains) for name in running), default=1.0)

    def is_kept(self) -> bool:
        """Whether every objective is met, but for the scatter of a reading."""
        return max(map(self.latency_ms, self.apps)) <= self.target_ms * (1.0 + SCATTER)

    def changes(self, since_s: float = 0.0) -> list[tuple[Allocation, Allocation]]:
        """What was decided to be changed for the first application, before and after."""
        told = (d for d in self.decisions if d.at_s >= since_s)
        return [(d.current, d.chosen) for d in told if d.chosen != d.current]

    def allowed(self, job: str, domains: Sequence[int] = (0, 1)) -> tuple[float, float]:
        """The mean shares of ways and of bandwidth that a job has in these domains, as the kernel's tree says."""
        fs = self.host.fs
        if self.host.resctrl is None:
            return 1.0, 1.0
        thread = fs.read(f"{CGROUP_ROOT}/t/{job}/cgroup.threads").split()[0]
        group = MOUNT_POINT
        for name in fs.subdirectories(MOUNT_POINT):
            if name.startswith("perphd.") and thread in fs.read(f"{MOUNT_POINT}/{name}/tasks").split():
                group = f"{MOUNT_POINT}/{name}"
        ways: list[float] = []
        bandwidth: list[float] = []
        for line in fs.read(f"{group}/schemata").decode().splitlines():
            resource, _, rest = line.strip().partition(":")
            values = dict(part.split("=") for part in rest.split(";"))
            here = [value for domain, value in values.items() if int(domain) in domains]
            if resource == "MB":
                bandwidth += [int(value) / 100 for value in here]
            else:
                ways += [int(value, 16).bit_count() / WAYS for value in here]
        return sum(ways) / len(ways), sum(bandwidth) / len(bandwidth)

    def _spec(self, app: App) -> WorkloadSpec:
        sli = SliSpec("file", (("max_age_s", "10"), ("path", str(self._folder / app.name))))
        objective = Objective(max_latency_ms=self.target_ms)
        return WorkloadSpec(app.name, Kind.LRA, f"/t/{app.name}", objective=objective, sli=sli)

    def _slower(self, job: str, domains: Sequence[int]) -> float:
        ways, bandwidth = self.allowed(job, domains)
        return 1.0 + CACHE_SHARE * ways + BANDWIDTH_SHARE * bandwidth

    def _tell(self) -> None:
        for app in self.apps:
            took_ms = self.latency_ms(app) * self._random.gauss(1.0, self.scatter)
            file = self._folder / app.name
            latency = f"latency_p50_ms = {took_ms / 1.6}\nlatency_p95_ms = {took_ms}\n"
            file.with_suffix(".new").write_text(f"work_rate_per_s = 60\nload_per_s = 60\n{latency}")
            os.rename(file.with_suffix(".new"), file)
        self._tells_s = self.host.now_s + TELLS_S
