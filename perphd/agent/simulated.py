"""The embedded simulated host behind the agent's seams: its SLI sources, and ``[host] kind = "simulated"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.composition import build_agent
from perphd.agent.config import Config
from perphd.agent.loop import Agent
from perphd.agent.sli import SliOpener
from perphd.domain.reading import Reading, Unavailable
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.monitor.sli import SliReading
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.sli import SliCursor
from perphd.sim.workload import Batch, Lra, Workload, placed

BATCH_ARRIVES_S: Final = 30.0
"""Simulated batch jobs start so long after the daemon, so that it sees the applications undisturbed first."""
_CORES: Final = 8
DEFAULT_WORKLOADS: Final = (
    WorkloadSpec("mysql", Kind.LRA, "/simulated/mysql"),
    WorkloadSpec("pi", Kind.BATCH, "/simulated/pi"),
)


class SimulatedSli:
    """The indicators of one simulated application, as an ``SliSource``."""

    def __init__(self, cursor: SliCursor) -> None:
        self._cursor = cursor

    async def read(self, now_s: float) -> SliReading:
        """The indicators since the last reading; the host's own clock counts, not ``now_s``."""
        window = self._cursor.read()
        if window is None:
            return SliReading.missing(Unavailable("no time has passed since the last reading"))
        return SliReading(
            work_rate_per_s=window.work_rate_per_s,
            load_per_s=_reading(window.load_per_s, "a closed loop: what is asked is what is answered"),
            latency_p50_ms=_reading(window.p50_ms, "nothing was answered"),
            latency_p95_ms=_reading(window.p95_ms, "nothing was answered"),
            latency_p99_ms=_reading(window.p99_ms, "nothing was answered"),
        )

    async def close(self) -> None:
        """Nothing to give back."""


def simulated_sli(host: SimHost) -> SliOpener:
    """Opens sources such as ``SliSpec("simulated", (("workload", "mysql"),))`` on this host."""
    return lambda spec, _: SimulatedSli(host.sli(spec.get("workload")))


def _reading(value: float | None, otherwise: str) -> Reading:
    return Unavailable(otherwise) if value is None else value


def simulate(
    specs: Sequence[WorkloadSpec],
    *,
    machine: Machine | None = None,
    batch_arrives_s: float = BATCH_ARRIVES_S,
    seed: int = 0,
    resctrl: bool = False,
    kinds: Mapping[str, str] | None = None,
) -> SimHost:
    """A simulated server on which these workloads run: databases with ten clients, jobs that fill it.

    ``kinds``: workload -> the archetype that it is instead. Raises ConfigError for one that does not exist.
    """
    machine = machine or Machine(1, _CORES)
    kinds = kinds or {}
    work: list[Workload] = [
        placed(kinds[spec.name], spec.cgroup, spec.name)
        if spec.name in kinds
        else Lra(spec.name, spec.cgroup, clients=10, service_ms=2.0, serial_ms=0.05, wait_ms=1.5)
        if spec.kind is Kind.LRA
        else Batch(spec.name, spec.cgroup, threads=machine.cpus)
        for spec in specs
    ]
    arrivals = [Arrival(batch_arrives_s, spec.name) for spec in specs if spec.kind is Kind.BATCH]
    host = SimHost(work, machine=machine, events=arrivals, seed=seed, pmu=True, resctrl=resctrl)
    for spec in specs:
        host.fs.write(f"{CGROUP_ROOT}{spec.cgroup}/cpuset.cpus", str(host.machine.online).encode())
    return host


def build_simulated(config: Config) -> tuple[Agent, Callable[[float], None]]:
    """An agent on a simulated server, and the function that moves the simulated host on to a time (s from start).

    Every configured LRA becomes a database with ten clients, every batch workload a job of eight threads that
    arrives after ``BATCH_ARRIVES_S``; without any, one of each is simulated.
    """
    specs = tuple(
        replace(spec, sli=SliSpec("simulated", (("workload", spec.name),))) if spec.kind is Kind.LRA else spec
        for spec in config.workloads or DEFAULT_WORKLOADS
    )
    host = simulate(specs)
    agent = build_agent(
        replace(config, workloads=specs),
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        delays=host,
    )
    return agent, host.advance
