"""A fleet in virtual time, from 1 to 12,583 nodes: submissions, decisions, ends and evictions, event by event.

Every ``cycle_s``, schedulers decide with ``perphd.cluster.scheduling.placement`` from the state that nodes
published. Nodes whose pods changed get new conditions in the same cycle; all nodes get them every ``tick_s``,
when loads have changed. Between the evaluations of a node its batch progresses at a constant rate. Cycles
without a submission, an end or a tick are skipped. Between two cycles the simulator's state is consistent, and
a run can continue from a copy of it (``checkpoint``).

Several schedulers decide on the same published state at once; conflicts follow Optum's rule (``placement.resolved``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from perphd.batch.sharing import MemoryUser, evicted
from perphd.cluster.scheduling.distribution import FLEET_CELLS
from perphd.cluster.scheduling.fleet import BaseColumns, Fleet
from perphd.cluster.scheduling.optum import MatchedColumns
from perphd.cluster.scheduling.placement import (
    PlacementDecision,
    PlacementProposal,
    decided,
    resolved,
)
from perphd.cluster.scheduling.profile import NodeProfile, Pod, PodKind
from perphd.forecast.grid import GridDistribution, added, nothing, of_outcomes
from perphd.qos.bands import QosBand
from perphd.sim.cluster.bands import CopperOffers
from perphd.sim.cluster.contention import BY_POD, Conditions, NodeModel, part_of, put_back
from perphd.sim.cluster.division import Floats, Places
from perphd.sim.cluster.fleet_cycle import FleetCycle, law_of, with_room
from perphd.sim.cluster.fleet_events import FleetEvent, FleetEventKind
from perphd.sim.cluster.fleet_results import FleetRun, FleetTick
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FLEET_NODE, FleetWorkload, Loads
from perphd.sim.cluster.learning import BATCH_BASE, Learned, Learner
from perphd.sim.cluster.node_agents import Judged
from perphd.sim.cluster.targets import late_services
from perphd.sim.node.machine import Machine
from perphd.sim.node.population import population

EVICTION_RATIO: Final = 0.97
"""Share of a node's memory above which batch is evicted, before the kernel's OOM killer acts."""
HISTORY_TICKS: Final = 288
LEAST_CORES: Final = 1e-3
"""CPUs left to copper that an event stops."""
_NEW_ROUNDS: Final = 8
_GIVEN_UP: Final = 40
"""Number of pods in one cycle without a suitable node, after which the other pods wait for a change."""


class FleetSimulator:
    """One simulation. Each call of ``run`` continues it."""

    def __init__(
        self,
        workload: FleetWorkload,
        nodes: int,
        settings: FleetSettings,
        learned: Learned | None = None,
        machine: Machine = FLEET_NODE,
    ) -> None:
        self.workload, self.nodes, self.settings, self.machine = workload, nodes, settings, machine
        self._learned = learned if learned is not None else Learned()
        self._people = population(workload.types)
        self._loads = Loads(workload)
        pods, count = workload.pods, len(workload.pods)
        self._kind = np.array([pod.type for pod in pods], dtype=np.intp)
        self._request = np.array([pod.cores for pod in pods])
        self._held = np.array([pod.memory_bytes * pod.memory_ratio for pod in pods])
        self._held_ratio = np.array([pod.memory_ratio for pod in pods])
        self._service = np.array([pod.kind is PodKind.SERVICE for pod in pods], dtype=bool)
        self._model = NodeModel(machine, self._people, nodes)
        alone_s = self._model.alone_s[self._kind]
        self._alone_s = alone_s
        self._left = np.array([pod.work_cpu_s for pod in pods]) / alone_s
        self._total = self._left.copy()
        self._node = np.full(count, -1, dtype=np.intp)
        self._rate = np.zeros(count)
        self._since_s = np.zeros(count)
        self._ends_s = np.full(count, math.inf)
        self._here: list[list[int]] = [[] for _ in range(nodes)]
        self._balance = self._model.started(self._kind, np.ones(count))
        self._p99 = np.array([self._learned.p99(pod.application) * pod.cores for pod in pods])
        self._totals: deque[Floats] = deque(maxlen=HISTORY_TICKS)
        self._with_laws = settings.placement.policy == "distribution"
        self._laws: list[tuple[GridDistribution, GridDistribution] | None] = [None] * nodes
        self.result = FleetRun(
            np.full(count, np.nan), np.full(count, np.nan), np.zeros(count), np.zeros(count), np.zeros(count),
            np.zeros(count, dtype=np.intp), [], [], 0, 0,
        )  # fmt: skip
        self._made: dict[int, Pod] = {}
        self._fleet = Fleet([self._profile(row) for row in range(nodes)], self._learned.usage)
        if settings.pairing is not None:
            self._fleet.columns(MatchedColumns).pairing = settings.pairing
        self._learner = self._made_learner() if settings.learn else None
        self._copper = None if settings.copper is None else CopperOffers(nodes, machine, settings.copper)
        self._new: set[int] = set()
        self._cores = np.zeros(count)
        self._ticked = np.zeros(count)
        self._slow = np.zeros(count)
        self._judged: Judged | None = None
        self._next: FleetCycle | None = None

    @property
    def now_s(self) -> float:
        """Time of the next cycle."""
        return 0.0 if self._next is None else self._next.now_s

    def run(
        self,
        until_s: float,
        on_tick: Callable[[FleetTick], None] | None = None,
        after_cycle: Callable[[FleetSimulator], None] | None = None,
    ) -> FleetRun:
        """Run until this time; pods that run then are left running.

        ``on_tick`` is called after every tick, for a progress bar; ``after_cycle`` with the simulator between two
        cycles, for a checkpoint.
        """
        if self._next is None:
            self._next = FleetCycle(submitted=self._place() if self.settings.placed else 0)
        while self._next.now_s <= until_s:
            self._cycle(self._next, on_tick)
            if after_cycle is not None:
                after_cycle(self)
        result, batch = self.result, ~self._service
        result.work_done[batch] = (self._total[batch] - self._left[batch]) * self._alone_s[batch]
        result.slow_share = self._slow / np.maximum(self._ticked, 1.0)
        if self._learner is not None:
            result.learned = self._learner.learned()
        return result

    def _cycle(self, here: FleetCycle, on_tick: Callable[[FleetTick], None] | None) -> None:
        """Simulate one cycle; afterwards ``here`` describes the next cycle."""
        result, pods, now_s = self.result, self.workload.pods, here.now_s
        waiting, dirty = here.waiting, here.dirty
        mark = len(result.events)
        freed = self._end(now_s)
        dirty |= freed
        while here.submitted < len(pods) and pods[here.submitted].submitted_s <= now_s:
            at_s = pods[here.submitted].submitted_s
            result.events.append(FleetEvent(at_s, FleetEventKind.SUBMITTED, here.submitted))
            waiting.append(here.submitted)
            here.submitted, here.retry = here.submitted + 1, True
        result.events[mark:] = sorted(result.events[mark:], key=lambda event: event.at_s)
        is_tick = now_s >= here.tick_s
        if waiting and (here.retry or freed or is_tick):
            dirty |= self._schedule(waiting, now_s)
            here.retry = False
        if is_tick:
            self._evaluate(range(self.nodes), now_s, self.settings.rounds)
            dirty.clear()
            self._publish_use()
            result.ticks.append(self._tick(now_s, len(waiting)))
            if on_tick is not None:
                on_tick(result.ticks[-1])
            here.tick_s += self.settings.tick_s
        elif dirty:
            self._evaluate(sorted(dirty), now_s, max(_NEW_ROUNDS, self.settings.rounds))
            dirty.clear()
        lost = self._evict(now_s)
        waiting.extend(lost)
        dirty |= {int(node) for node in lost.values()}
        upcoming = pods[here.submitted].submitted_s if here.submitted < len(pods) else math.inf
        upcoming = min(upcoming, here.tick_s, float(self._ends_s.min(initial=math.inf)))
        if dirty:
            upcoming = now_s
        cycle = self.settings.cycle_s
        here.now_s = max(now_s + cycle, math.ceil(upcoming / cycle) * cycle)

    def _place(self) -> int:
        """Start the pods that are present at time 0. Returns their number."""
        count = sum(1 for pod in self.workload.pods if pod.submitted_s <= 0.0)
        self.result.events += [FleetEvent(0.0, FleetEventKind.SUBMITTED, pod) for pod in range(count)]
        for pod in range(count):
            self._run(pod, pod % self.nodes, 0.0)
        for node in range(self.nodes):
            self._fleet.put(self._profile(node))
        return count

    # -- decisions ---------------------------------------------------------------------------------------

    def _schedule(self, waiting: deque[int], now_s: float) -> set[int]:
        """Decide about the waiting pods in order. Returns the nodes that received one."""
        changed, passed = self._grouped(waiting, now_s)
        hopeless: set[tuple[str, float]] = set()
        size, refused = self.settings.schedulers, 0
        while waiting and refused < _GIVEN_UP:
            asked: list[int] = []
            while waiting and len(asked) < size:
                pod = waiting.popleft()
                known = self.workload.pods[pod]
                (passed if (known.application, known.cores) in hopeless else asked).append(pod)
            proposals = []
            for place, pod in enumerate(asked):
                chosen = self.decide(pod, now_s).chosen
                if chosen is None:
                    known = self.workload.pods[pod]
                    hopeless.add((known.application, known.cores))
                    passed.append(pod)
                    refused += 1
                    continue
                proposals.append(PlacementProposal(str(place), str(pod), chosen.node, chosen.score))
            resolution = resolved(proposals)
            for each in resolution.deployed:
                changed.add(self._start(int(each.pod), int(each.node), now_s))
            for each in reversed(resolution.redispatched):
                self.result.conflicts += 1
                self.result.events.append(
                    FleetEvent(now_s, FleetEventKind.CONFLICT, int(each.pod), int(each.node))
                )
                waiting.appendleft(int(each.pod))
        waiting.extendleft(reversed(passed))
        return changed

    def _grouped(self, waiting: deque[int], now_s: float) -> tuple[set[int], list[int]]:
        """Place services in groups if the settings ask for it. Returns the nodes that received one, and the
        services still waiting.
        """
        changed: set[int] = set()
        place, size = self.settings.together, self.settings.group
        if place is None:
            return changed, []
        services = [pod for pod in waiting if self._service[pod]]
        for pod in services:
            waiting.remove(pod)
        for first in range(0, len(services), size):
            group = services[first : first + size]
            self.result.decisions += len(group)
            found = place(self._fleet.profiles, [self._pod(pod) for pod in group])
            for pod, node in zip(group, found, strict=True):
                if node is not None:
                    changed.add(self._start(pod, int(node), now_s))
        return changed, [pod for pod in services if self._node[pod] < 0]

    def decide(self, pod: int, now_s: float) -> PlacementDecision:
        """The policy's decision for one pod on the present fleet; starts nothing."""
        self.result.decisions += 1
        if self._copper is not None and not self._service[pod]:
            return self._copper.decided(self._fleet, self._pod(pod), now_s)
        limit = None if self._service[pod] else self.settings.batch_limit
        allowed = None
        if limit is not None:
            used, new = self._cores.copy(), list(self._new)
            used[new] = self._request[new]
            allowed = with_room(used, self._node, self.nodes, limit * self.machine.cpus - self._request[pod])
        return decided(self._fleet, self._pod(pod), now_s, self.settings.placement, allowed)

    def _start(self, pod: int, node: int, now_s: float) -> int:
        self._run(pod, node, now_s)
        law = self._laws[node]
        if law is not None:
            own = self._law(pod)
            self._laws[node] = added(law[0], own[0]), added(law[1], own[1])
        self._fleet.put(self._profile(node))
        return node

    def _run(self, pod: int, node: int, now_s: float) -> None:
        self._node[pod], self._since_s[pod] = node, now_s
        self._here[node].append(pod)
        if self._copper is not None and not self._service[pod]:
            self._copper.hold(node, self._pod(pod), 1)
        self._new.add(pod)
        if math.isnan(self.result.started_s[pod]):
            self.result.started_s[pod] = now_s
        self.result.events.append(FleetEvent(now_s, FleetEventKind.STARTED, pod, node))

    # -- time --------------------------------------------------------------------------------------------

    def _end(self, now_s: float) -> set[int]:
        """End the batch pods that complete up to now, in order of time."""
        done = np.nonzero(self._ends_s <= now_s)[0]
        freed: set[int] = set()
        for pod in done[np.argsort(self._ends_s[done], kind="stable")].tolist():
            self.result.ended_s[pod] = self._ends_s[pod]
            self._left[pod] = 0.0
            freed.add(self._remove(pod, float(self._ends_s[pod]), FleetEventKind.ENDED))
        for node in freed:
            self._fleet.put(self._profile(node))
        return freed

    def _remove(self, pod: int, at_s: float, kind: FleetEventKind) -> int:
        node = int(self._node[pod])
        self._here[node].remove(pod)
        if self._copper is not None and not self._service[pod]:
            self._copper.hold(node, self._pod(pod), -1)
        self._node[pod], self._ends_s[pod], self._rate[pod] = -1, math.inf, 0.0
        self._laws[node] = None
        self.result.events.append(FleetEvent(at_s, kind, pod, node))
        return node

    def _evict(self, now_s: float) -> dict[int, int]:
        """Evict batch where memory is short; evicted pods wait again and restart. Returns each evicted pod's node."""
        lost: dict[int, int] = {}
        running = np.nonzero(self._node >= 0)[0]
        held = np.bincount(self._node[running], self._held[running], self.nodes)
        limit = int(EVICTION_RATIO * self.machine.memory_bytes)
        for node in np.nonzero(held > limit)[0].tolist():
            users = [
                MemoryUser(
                    str(pod), QosBand.SILVER if self._service[pod] else QosBand.COPPER, int(self._held[pod]),
                    int(self.workload.pods[pod].memory_bytes),
                )
                for pod in self._here[node]
            ]  # fmt: skip
            for name in evicted(users, limit):
                pod = int(name)
                lost[pod] = node
                self.result.evictions[pod] += 1
                self._left[pod] = self._total[pod]
                self._remove(pod, now_s, FleetEventKind.EVICTED)
            self._fleet.put(self._profile(node))
        return lost

    def _evaluate(self, nodes: Iterable[int], now_s: float, rounds: int) -> None:
        """Compute new conditions of these nodes' pods, and the times at which batch will end."""
        chosen = np.array(list(nodes), dtype=np.intp)
        pods = np.array([pod for node in chosen.tolist() for pod in self._here[node]], dtype=np.intp)
        self._last: tuple[Places, Conditions | None] = pods, None
        if not len(pods):
            return
        whole = len(chosen) == self.nodes
        number = np.zeros(self.nodes, dtype=np.intp)
        number[chosen] = np.arange(len(chosen))
        node, kind = number[self._node[pods]], self._kind[pods]
        load = self._loads.at(now_s, pods)
        if self._copper is not None:
            ceiling = np.maximum(self._copper.share(now_s) * self._request[pods], LEAST_CORES)
            load = np.where(self._service[pods], load, np.minimum(load, ceiling))
        fresh = (
            np.isin(pods, np.fromiter(self._new, dtype=np.intp)) if self._new else np.zeros(len(pods), bool)
        )
        model = self._model if whole else NodeModel(self.machine, self._people, len(chosen))
        balance = part_of(self._balance, pods, chosen)
        if fresh.any():
            start = model.started(kind, load)
            for name in BY_POD:
                getattr(balance, name)[fresh] = getattr(start, name)[fresh]
        weight = np.maximum(self._request[pods] * 25.0, 1.0)
        if self.settings.agents is None:
            told, self._judged = model.evaluate(node, kind, load, weight, balance, None, rounds), None
        else:
            self._judged = self.settings.agents.judged(model, node, kind, load, weight, balance, rounds)
            told = self._judged.told
        put_back(self._balance, balance, pods, chosen)
        self._new.difference_update(pods.tolist())
        self._progress(pods, told.rate, now_s)
        self._cores[pods] = told.cores
        if self._copper is not None:
            cores, held = (
                np.bincount(node, np.where(self._service[pods], used, 0.0), len(chosen)).astype(np.float64)
                for used in (told.cores, self._held[pods])
            )
            self._copper.used(chosen, cores, held, now_s)
        stall = np.where(self._service[pods], told.stall, 0.0)
        self.result.worst_stall[pods] = np.maximum(self.result.worst_stall[pods], stall)
        self._last = (pods, told)

    def _progress(self, pods: Places, rate: Floats, now_s: float) -> None:
        batch = ~self._service[pods]
        who = pods[batch]
        done = self._rate[who] * (now_s - self._since_s[who])
        self._left[who] = np.maximum(self._left[who] - done, 0.0)
        self._since_s[who], self._rate[who] = now_s, rate[batch]
        self._ends_s[who] = now_s + self._left[who] / np.maximum(rate[batch], 1e-9)

    def _tick(self, now_s: float, waiting: int) -> FleetTick:
        pods, told = self._last
        cpus, memory = float(self.machine.cpus), float(self.machine.memory_bytes)
        if told is None:
            return FleetTick(now_s, 0, 0.0, 0.0, 0.0, 0, waiting, 0, 0, 0)
        in_use = np.zeros(self.nodes, dtype=bool)
        node = self._node[pods]
        in_use[node] = True
        count = max(int(in_use.sum()), 1)
        cores = np.bincount(node, told.cores, self.nodes)
        wanted = np.bincount(node, told.wanted, self.nodes)
        service = self._service[pods]
        judged = self._judged
        late = service & (late_services(told, self._alone_s[pods]) if judged is None else judged.late)
        self._ticked[pods] += 1.0
        self._slow[pods] += late
        if self._learner is not None:
            slowdown = np.clip(
                BATCH_BASE * told.wanted / np.maximum(told.rate * self._alone_s[pods], 1e-9), 0, 1
            )
            suffered = np.where(service, told.stall, slowdown)
            self._learner.sample(
                node, self._app[pods], self._request[pods], told.cores, suffered, cores[node] / cpus,
                self._held_ratio[pods],
            )  # fmt: skip
        return FleetTick(
            now_s, int(in_use.sum()), float(cores.sum() / cpus / count),
            float(self._held[pods].sum() / memory / count), float(self._request[pods].sum() / cpus / count),
            int((wanted > cpus * (1 + 1e-6)).sum()), waiting, len(pods), int(late.sum()), int(service.sum()),
            0 if judged is None else int(judged.held.sum()),
        )  # fmt: skip

    # -- what is published -------------------------------------------------------------------------------

    def _profile(self, node: int) -> NodeProfile:
        here = self._here[node]
        cpus, memory = float(self.machine.cpus), float(self.machine.memory_bytes)
        laws: tuple[GridDistribution | None, GridDistribution | None] = (None, None)
        if self._with_laws:
            if self._laws[node] is None:
                total = nothing(cpus, FLEET_CELLS), nothing(memory, FLEET_CELLS)
                for pod in here:
                    own = self._law(pod)
                    total = added(total[0], own[0]), added(total[1], own[1])
                self._laws[node] = total
            laws = self._laws[node] or laws
        cores = self._cores[here] if here else np.zeros(0)
        mean, deviation = self._history(node)
        return NodeProfile(
            str(node), len(self.result.events), 0.0, math.inf, cpus, memory,
            tuple(self._pod(pod) for pod in here), float(cores.sum()) if here else 0.0,
            float(self._held[here].sum()) if here else 0.0, float(self._p99[here].sum()) if here else 0.0,
            mean, deviation, laws[0], laws[1],
        )  # fmt: skip

    def _history(self, node: int) -> tuple[float, float]:
        if not self._totals:
            return 0.0, 0.0
        values = np.array([each[node] for each in self._totals])
        return float(values.mean()), float(values.std())

    def _publish_use(self) -> None:
        """Update the measured use of all nodes in place."""
        running = np.nonzero(self._node >= 0)[0]
        node = self._node[running]
        cores = np.bincount(node, self._cores[running], self.nodes).astype(np.float64)
        self._totals.append(cores)
        base, rows = self._fleet.columns(BaseColumns), self._fleet.rows
        base.refresh("used_cores", rows, cores)
        if self.settings.placement.policy == "n-sigma":
            history = np.stack(self._totals)
            base.refresh("mean_cores", rows, history.mean(0))
            base.refresh("sd_cores", rows, history.std(0))

    def _pod(self, pod: int) -> Pod:
        known = self._made.get(pod)
        if known is None:
            each = self.workload.pods[pod]
            ratios = self._learned.laws.get(each.application) if self._with_laws else None
            known = self._made[pod] = Pod(
                each.name, each.application, each.kind, each.cores, each.memory_bytes,
                self._learned.surfaces.get(each.application),
                cores_law={} if ratios is None else law_of(ratios * each.cores),
                memory_law={} if ratios is None else {each.memory_bytes * each.memory_ratio: 1.0},
            )  # fmt: skip
        return known

    def _law(self, pod: int) -> tuple[GridDistribution, GridDistribution]:
        cores, memory = self._pod(pod).laws()
        return (
            of_outcomes(cores, float(self.machine.cpus), FLEET_CELLS),
            of_outcomes(memory, float(self.machine.memory_bytes), FLEET_CELLS),
        )

    def _made_learner(self) -> Learner:
        names: dict[str, int] = {}
        kinds: list[PodKind] = []
        app = []
        for pod in self.workload.pods:
            if pod.application not in names:
                names[pod.application] = len(names)
                kinds.append(pod.kind)
            app.append(names[pod.application])
        self._app = np.array(app, dtype=np.intp)
        return Learner(list(names), kinds)
