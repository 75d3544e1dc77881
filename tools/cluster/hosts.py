"""Simulated hosts of the comparison: perphd's real agent on each, and slots into which pods are put.

A host has one place for each kind of LRA and a number of places for copper pods. A place without a pod is an empty
control group. perphd knows the places for copper from the start, and an LRA from the start of its pod, as with a
configuration that matches pods. A declared LRA that never starts would otherwise be protected from running batch.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from perphd.agent.composition import build_agent
from perphd.agent.simulated import simulated_sli
from perphd.cluster.document import NodeDocument
from perphd.config.file import Config, DaemonConfig, StoreConfig
from perphd.control.node_routes import NodeRoutes
from perphd.domain.wire import decode
from perphd.domain.workload import Kind, Mode, Objective, SliSpec, WorkloadSpec
from perphd.sim.events import Arrival, Departure, LoadChange
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Placed, placed

MACHINE: Final = Machine(1, 16, memory_bytes=64 << 30)
LRA_KINDS: Final = {"kafka-stream": 8.0, "memcached": 4.0, "img-dnn": 8.0}
"""Archetypes and the CPUs that their pods request, which exceed their use, as usual."""
COPPER_KINDS: Final = ("batch-pi", "batch-stream")
COPPER_PLACES: Final = 16
NEVER_S: Final = 1e12
SOLO_S: Final = 10.0
TOLERATED: Final = Objective()
"""An LRA is on target if it loses at most this share of its work and latency, compared with a host of its own."""


@cache
def solo(kind: str, factor: float, threads: int = 0) -> tuple[float, float]:
    """Work per second and p95 latency (ms) of an archetype alone on such a host; ``threads``: of batch."""
    work = placed(kind, "/solo/it", "it")
    if threads:
        work = Placed(replace(work.node, threads=threads), work.cgroup)
    host = SimHost([work], machine=MACHINE, seed=1)
    host.happen(LoadChange(0.0, "it", factor))
    host.advance(SOLO_S)
    seen = host.outcome("it")
    return seen.work_per_s, seen.p95_ms


def stated_latency_ms(kind: str) -> float:
    """The latency target (p95) of an LRA's pod: its latency alone at full load plus the tolerance."""
    return round(solo(kind, 1.0)[1] * (1.0 + TOLERATED.delay_tolerance_pct / 100.0), 3)


class SimulatedNode:
    """One host with its agent. ``mode``: enforce, or observe, which represents a host without perphd."""

    def __init__(self, name: str, mode: Mode, seed: int, state: Path) -> None:
        self.name = name
        self._lras = {f"lra-{kind}": kind for kind in LRA_KINDS}
        self._free = [f"copper-{n}" for n in range(COPPER_PLACES)]
        works = [placed(kind, f"/lra/{place}", place) for place, kind in self._lras.items()]
        events = [Arrival(NEVER_S, each.name) for each in works]
        self.host = SimHost(works, machine=MACHINE, events=events, seed=seed, pmu=True)
        specs = []
        for place in self._free:
            self.host.cgroups.make(f"/copper/{place}")
            specs.append(WorkloadSpec(place, Kind.BATCH, f"/copper/{place}", band="copper"))
        for cgroup in (*(each.cgroup for each in specs), *(each.cgroup for each in works)):
            self.host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", str(MACHINE.online).encode())
        config = Config(
            daemon=DaemonConfig(mode=mode, state_dir=str(state / name)),
            store=StoreConfig(enabled=False),
            workloads=tuple(specs),
        )
        self.agent = build_agent(
            config,
            fs=self.host.fs,
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
            delays=self.host,
            store=False,
        )
        self._routes = NodeRoutes(self.agent, cast(Any, None), self._clock)
        self._factors: dict[str, float] = {}
        self._until: dict[str, float] = {}
        self.pods: dict[str, str] = {}
        """Place of each pod, by the pod's name."""

    def _clock(self) -> dict[str, float]:
        return {"monotonic_s": self.host.now_s, "unix_s": time.time()}

    async def tick(self, now_s: float) -> None:
        """Advance by a second, with one tick of the agent."""
        self.host.advance(now_s)
        await self.agent.tick(now_s)

    async def document(self) -> NodeDocument:
        """The daemon's answer to GET /v1/node."""
        return decode(NodeDocument, await self._routes.node(cast(Any, None), cast(Any, None)))

    async def start_lra(self, pod: str, kind: str, factor: float, latency_ms: float | None = None) -> None:
        """Start an LRA pod with this factor on its archetype's load; perphd finds it.

        ``latency_ms``: the pod's declared target; None if it has none.
        """
        place = f"lra-{kind}"
        source = SliSpec("simulated", (("workload", place),))
        target = replace(TOLERATED, max_latency_ms=latency_ms)
        await self.agent.add_workload(
            WorkloadSpec(place, Kind.LRA, f"/lra/{place}", objective=target, sli=source)
        )
        self.host.happen(Arrival(0.0, place))
        self.set_load(place, factor)
        self.pods[pod] = place

    def set_load(self, place: str, factor: float) -> None:
        """Change the load factor of the LRA at this place."""
        self.host.happen(LoadChange(0.0, place, factor))
        self._factors[place] = factor

    def start_copper(self, pod: str, kind: str, threads: int, seconds: float) -> None:
        """Start a copper pod with work for this many seconds alone on the host."""
        place = self._free.pop(0)
        made = placed(kind, f"/copper/{place}", place)
        before = self.host.work_done(place) if self.host.has(place) else 0.0
        self.host.place(Placed(replace(made.node, threads=threads), made.cgroup))
        self._until[pod] = before + seconds * solo(kind, 1.0, threads)[0]
        self.pods[pod] = place

    def finished(self) -> list[str]:
        """Remove completed copper pods and return them."""
        done = [pod for pod, most in self._until.items() if self.host.work_done(self.pods[pod]) >= most]
        for pod in done:
            place = self.pods.pop(pod)
            del self._until[pod]
            self.host.happen(Departure(0.0, place))
            self._free.append(place)
        return done

    def lras_on_target(self) -> tuple[int, int]:
        """Number of LRAs with nearly their work alone and within their latency target; number of running LRAs."""
        good = total = 0
        for place, kind in self._lras.items():
            if not self.host.running(place):
                continue
            total += 1
            seen = self.host.outcome(place)
            work, _ = solo(kind, self._factors[place])
            kept = seen.work_per_s >= work * (1.0 - TOLERATED.tolerance_pct / 100.0)
            soon = seen.p95_ms <= stated_latency_ms(kind)
            good += kept and soon
        return good, total

    def used_cores(self) -> float:
        """CPU use of all pods together."""
        return sum(self.host.outcome(place).usage_cores for place in self.pods.values())

    async def stop(self) -> None:
        """Stop the agent."""
        await self.agent.stop(restore=True)
