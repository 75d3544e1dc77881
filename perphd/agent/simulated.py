"""The embedded simulated host: its SLI sources, and ``[tuning.host] kind = "simulated"``."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Final

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.sli import SliOpener
from perphd.config.file import Config
from perphd.domain.reading import Unavailable, available
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.monitor.sli import SliReading
from perphd.monitor.sli.reading import behind
from perphd.monitor.sli.resolution import EXACT, CountWindow, Origin, Resolution, ResolutionFinder
from perphd.sim.host import Arrival, SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.sli import SliCursor
from perphd.sim.workload import Batch, Lra, Workload, placed

BATCH_ARRIVES_S: Final = 30.0
"""Seconds after the start at which simulated batch jobs arrive, so that perphd sees undisturbed applications first."""
_CORES: Final = 8
DEFAULT_WORKLOADS: Final = (
    WorkloadSpec("mysql", Kind.LRA, "/simulated/mysql"),
    WorkloadSpec("pi", Kind.BATCH, "/simulated/pi"),
)


class SimulatedSli:
    """The indicators of one simulated application, as an ``SliSource``.

    ``known``: resolution of the indicators; None: perphd must estimate it.
    """

    def __init__(self, cursor: SliCursor, known: Resolution | None = EXACT) -> None:
        self._cursor = cursor
        self._finder = ResolutionFinder(known)
        self._window = CountWindow()
        at_s, self._base = cursor.now
        self._window.update(self._base[0], at_s)

    @property
    def resolution(self) -> Resolution:
        """The application's reporting interval, as far as known."""
        return self._finder.resolution

    def worked(self, cpu_s: float | None) -> None:
        """Take the CPU time that the application used between the last two readings; None if unknown."""
        self._finder.worked(cpu_s)

    async def read(self, now_s: float) -> SliReading:
        """The indicators since the last reading, by the simulated host's clock instead of ``now_s``."""
        at_s, told = self._cursor.now
        done, asked, latency = told
        self._finder.update(done, at_s)
        counted = self._window.update(done, at_s, self.resolution)
        base = self._base
        if self._window.began_s == at_s:
            self._base = told
        resolution_s = self.resolution.reading
        if not (available(counted.rate) and available(counted.events) and available(counted.window_s)):
            assert isinstance(counted.rate, Unavailable)
            return replace(SliReading.missing(counted.rate), resolution_s=resolution_s)
        answered = counted.events
        silent = Unavailable("nothing was answered")
        p50, p95, p99 = (
            (new - old) / answered if answered > 0 else silent
            for new, old in zip(latency, base[2], strict=True)
        )
        closed = Unavailable("closed loop: the offered load equals the answered load")
        load = (asked - base[1]) / counted.window_s if self._cursor.open_loop else closed
        made = behind(counted)
        return SliReading(
            counted.rate, load, p50, p95, p99, made, made, made, made, resolution_s=resolution_s
        )

    async def close(self) -> None:
        """Do nothing, because there is nothing to close."""


def simulated_sli(host: SimHost) -> SliOpener:
    """Opens sources such as ``SliSpec("simulated", (("workload", "mysql"),))`` on this host.

    ``resolution_s``: the reporting interval; ``find``: it must be estimated. Without either, readings are
    exact.
    """

    def opened(spec: SliSpec, _: str) -> SimulatedSli:
        text = spec.get("resolution_s")
        known = Resolution(float(text), Origin.CONFIGURED) if text not in ("", "find") else EXACT
        return SimulatedSli(host.sli(spec.get("workload")), None if text == "find" else known)

    return opened


def simulate(
    specs: Sequence[WorkloadSpec],
    *,
    machine: Machine | None = None,
    batch_arrives_s: float = BATCH_ARRIVES_S,
    seed: int = 0,
    resctrl: bool = False,
    kinds: Mapping[str, str] | None = None,
) -> SimHost:
    """A simulated server that runs these workloads: databases with ten clients, and jobs that fill the
    server.

    ``kinds``: workload -> its archetype. Raises ConfigError for an archetype that does not exist.
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


def with_indicators(config: Config, simulated: Container[str]) -> Config:
    """The configuration with indicators for the LRAs among the ``simulated`` workloads."""
    specs = tuple(
        replace(spec, sli=SliSpec("simulated", (("workload", spec.name),)))
        if spec.kind is Kind.LRA and spec.name in simulated
        else spec
        for spec in config.workloads or DEFAULT_WORKLOADS
    )
    return replace(config, workloads=specs)


def build_simulated(config: Config) -> tuple[Agent, Callable[[float], None]]:
    """An agent on a simulated server, and the function that advances the host to a time (s from start).

    Every configured LRA becomes a database with ten clients, every batch workload a job of eight threads that
    arrives after ``BATCH_ARRIVES_S``; without any workload, one of each is simulated.
    """
    declared = config.workloads or DEFAULT_WORKLOADS
    host = simulate(declared)
    agent = build_agent(
        with_indicators(config, {spec.name for spec in declared}),
        fs=host.fs,
        opener=host.perf_opener,
        sli_opener=simulated_sli(host),
        delays=host,
    )
    return agent, host.advance
