"""Pods of a unified platform, drawn from published facts (Optum, EuroSys 2023; Google 2011).

Services request about five times their average use, batch about three times. A service's use follows the time
of day; batch goes through phases. Memory: batch uses nearly all that it requests, services a stable 30 to 60
%. There are many applications, and all pods of one application are of one type.

Our own assumption, since no figure is published: the demand of an operation on caches and memory channels.
Types are drawn around the shipped archetypes' ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perphd.cluster.scheduling.profile import PodKind
from perphd.sim.cluster.division import Floats, Places
from perphd.sim.node.machine import Machine
from perphd.sim.node.workload import Code, MemoryUse, NodeWorkload, Requests

FLEET_NODE: Final = Machine(
    sockets=2,
    cores_per_socket=32,
    threads_per_core=2,
    memory_bytes=512 << 30,
    l3_bytes=48 << 20,
    llc_ways=12,
    ghz=2.5,
    memory_bytes_per_s=160e9,
    disk_ops_per_s=600_000.0,
    disk_bytes_per_s=6e9,
    net_bytes_per_s=3e9,
)
"""A node with 128 CPUs, as the published normalisation suggests."""

SERVICE_FLOOR: Final = 0.08
SERVICE_SWING: Final = 0.15
SERVICE_NOISE: Final = 0.08
BATCH_USE: Final = (0.15, 0.5)
BATCH_PHASES: Final = (0.3, 1.6)
PHASE_S: Final = 600.0
DAY_S: Final = 86400.0
_LEVELS: Final = 4096


@dataclass(frozen=True, slots=True)
class FleetPod:
    """A pod to be scheduled.

    ``type``: index into the workload's types. ``cores``, ``memory_bytes``: requests. ``used_ratio``: mean CPU
    use as a share of the request. ``memory_ratio``: memory use as a share of the request. ``work_cpu_s``: CPU
    time on an idle node after which the pod ends; infinite for a service.
    """

    name: str
    application: str
    kind: PodKind
    type: int
    cores: float
    memory_bytes: float
    used_ratio: float
    memory_ratio: float
    submitted_s: float
    work_cpu_s: float = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class FleetWorkload:
    """Types of applications and pods in order of submission; the seed determines the loads over time."""

    types: tuple[NodeWorkload, ...]
    pods: Sequence[FleetPod]
    seed: int


class Loads:
    """Cores that every pod demands over time: a daily cycle for services, phases for batch, and noise."""

    def __init__(self, workload: FleetWorkload) -> None:
        rng = np.random.default_rng([workload.seed, 7])
        pods = workload.pods
        count = len(pods)
        self._mean = np.array([pod.used_ratio * pod.cores for pod in pods])
        self._service = np.array([pod.kind is PodKind.SERVICE for pod in pods], dtype=bool)
        apps: dict[str, float] = {}
        for pod in pods:
            if pod.application not in apps:
                apps[pod.application] = float(rng.uniform(-0.08, 0.08))
        self._shift = np.array([apps[pod.application] for pod in pods]) if count else np.zeros(0)
        self._noise = rng.standard_normal(_LEVELS)
        self._phase = rng.uniform(*BATCH_PHASES, _LEVELS)
        self._own = rng.integers(0, _LEVELS, count)

    def at(self, now_s: float, pods: Places) -> Floats:
        """Cores that these pods demand at ``now_s``."""
        day = 0.5 - 0.5 * np.cos(2.0 * np.pi * (now_s / DAY_S + self._shift[pods]))
        course = (SERVICE_FLOOR + SERVICE_SWING * day) / (SERVICE_FLOOR + 0.5 * SERVICE_SWING)
        place = (self._own[pods] + int(now_s // PHASE_S) * 97) % _LEVELS
        noise = np.exp(SERVICE_NOISE * self._noise[place])
        factor = np.where(self._service[pods], course * noise, self._phase[place])
        result: Floats = np.maximum(self._mean[pods] * factor, 1e-3)
        return result


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Amounts to draw.

    ``service_requests``: share of the fleet's CPUs that services request at the start. ``jobs_per_h``: batch
    submissions per hour; nine of ten come in bursts. ``median_run_s``: median run time of batch on an idle
    node.
    ``memory_per_core``: mean request in GiB.
    ``cores_median``: median request of an application; the greatest is four times that.
    """

    nodes: int
    hours: float
    service_requests: float = 0.6
    jobs_per_h: float = 400.0
    median_run_s: float = 1800.0
    services: int = 30
    batches: int = 20
    memory_per_core: float = 3.0
    cores_median: float = 4.0


def drawn(shape: FleetShape, seed: int, machine: Machine = FLEET_NODE, day: int = 0) -> FleetWorkload:
    """Draw services that are all present at the start, and batch that arrives over time.

    Workloads with the same seed have the same applications; a different ``day`` gives different pods of them.
    """
    rng = np.random.default_rng([seed, 1])
    types = [service_type(rng, f"s{n}", machine) for n in range(shape.services)]
    types += [batch_type(rng, f"b{n}", machine) for n in range(shape.batches)]
    pods: list[FleetPod] = []
    sizes = np.clip(rng.lognormal(0.0, 0.5, len(types)), 0.25, 4.0) * shape.cores_median
    used = np.concatenate([np.full(shape.services, 0.155), rng.uniform(*BATCH_USE, shape.batches)])
    used[: shape.services] *= rng.uniform(0.7, 1.3, shape.services)
    memory = np.concatenate([rng.uniform(0.3, 0.6, shape.services), rng.uniform(0.9, 1.0, shape.batches)])
    per_core = shape.memory_per_core * rng.uniform(0.5, 1.5, len(types)) * (1 << 30)
    popular = rng.pareto(1.2, len(types)) + 0.2

    rng = np.random.default_rng([seed, 2, day])

    def pod(number: int, kind: PodKind, at_s: float, work: float) -> FleetPod:
        own = used[number] * (float(rng.uniform(0.95, 1.05)) if kind is PodKind.SERVICE else 1.0)
        return FleetPod(
            f"p{len(pods)}", types[number].name, kind, number, float(sizes[number]),
            float(sizes[number] * per_core[number]), float(own), float(memory[number]), at_s, work,
        )  # fmt: skip

    share = popular[: shape.services] / popular[: shape.services].sum()
    wanted = shape.nodes * machine.cpus * shape.service_requests
    mean = float(share @ sizes[: shape.services])
    chosen = rng.choice(shape.services, size=int(1.5 * wanted / mean) + 100, p=share)
    enough = int(np.searchsorted(np.cumsum(sizes[chosen]), wanted)) + 1
    for number in chosen[:enough].tolist():
        pods.append(pod(number, PodKind.SERVICE, 0.0, math.inf))
    share = popular[shape.services :] / popular[shape.services :].sum()
    for at_s in _submissions(rng, shape):
        number = shape.services + int(rng.choice(shape.batches, p=share))
        run_s = float(np.clip(rng.lognormal(math.log(shape.median_run_s), 0.8), 120.0, 6 * 3600.0))
        pods.append(pod(number, PodKind.BATCH, at_s, run_s * float(used[number] * sizes[number])))
    return FleetWorkload(tuple(types), pods, seed + 1000 * day)


def _submissions(rng: np.random.Generator, shape: FleetShape) -> list[float]:
    end_s = shape.hours * 3600.0 - 60.0
    return [60.0 + at_s for at_s in burst_times(rng, int(shape.jobs_per_h * shape.hours), end_s)]


def burst_times(rng: np.random.Generator, count: int, until_s: float) -> list[float]:
    """Draw times in bursts: a hyperexponential of two phases with a squared coefficient of variation of 4."""
    if not count:
        return []
    first = (1.0 + math.sqrt(3.0 / 5.0)) / 2.0
    fast = rng.random(count) < first
    gaps = rng.exponential(np.where(fast, 1.0 / (2.0 * first), 1.0 / (2.0 * (1.0 - first))))
    times = np.cumsum(gaps)
    result: list[float] = (until_s * times / times[-1]).tolist()
    return result


def _code(rng: np.random.Generator, heavy: float) -> Code:
    return Code(
        instructions=2e6,
        cpi=float(rng.uniform(0.6, 1.1)),
        miss_cycles=float(rng.uniform(15, 45)),
        mpki_floor=float(rng.uniform(0.2, 1.5)) * heavy,
        mpki_swing=float(rng.uniform(1, 8)) * heavy,
        mpki_scale_bytes=float(rng.uniform(0.5, 4)) * (1 << 20),
        refs_pki=float(rng.uniform(8, 25)),
        footprint_bytes=float(rng.uniform(4, 40)) * (1 << 20),
        smt_speed=float(rng.uniform(0.58, 0.7)),
    )


def service_type(rng: np.random.Generator, name: str, machine: Machine) -> NodeWorkload:
    """A service in an open loop; load 1 uses one core of an idle node."""
    code = _code(rng, 1.0)
    requests = Requests(
        rate_per_s=_one_core(code, machine), mix_cost=float(rng.uniform(0.05, 0.3)), mix_relief=0.02, bursts=2.0,
        queue_limit=1000.0,
    )  # fmt: skip
    return NodeWorkload(name, code, 64, requests, MemoryUse(0.0))


def batch_type(rng: np.random.Generator, name: str, machine: Machine) -> NodeWorkload:
    """A batch program; load 1 uses one core."""
    return NodeWorkload(name, _code(rng, float(rng.uniform(0.5, 2.5))), 1, None, MemoryUse(0.0))


def _one_core(code: Code, machine: Machine) -> float:
    """Requests per second that use one core of an idle node."""
    return machine.ghz * 1e9 / (code.cycles_per_instruction(machine.l3_bytes) * code.instructions)
