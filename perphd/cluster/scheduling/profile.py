"""A scheduler's data about nodes and pods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np

from perphd.forecast.grid import GridDistribution
from perphd.forecast.histogram import Floats
from perphd.qos.availability import AvailableInterval, DemandStage

BUCKETS: Final = 25
"""Number of equal parts of an interference value's range; predictions use a part's upper bound (Optum)."""
CPU_STEPS: Final = 11
MEMORY_STEPS: Final = 6
"""Points of a surface along the host's CPU and memory utilisation, from 0 to 1."""

InterferenceModel: TypeAlias = Callable[[Floats, Floats], Floats]
"""Maps the host's CPU and memory utilisation to the interference of one pod, from 0 to 1, element-wise.

The pod's own greatest utilisation and load, the other arguments of Optum's Eq. 9 and 10, are constants of the pod and
belong to the function.
"""


class PodKind(StrEnum):
    """Kind of a pod. It decides how the pod's interference is measured and weighted."""

    SERVICE = "service"  # latency-sensitive; measured by CPU pressure
    BATCH = "batch"  # measured by completion time over the longest one of its application


def bucketed(values: Floats, buckets: int = BUCKETS) -> Floats:
    """Round values up to the bounds of their parts; an exact 0 stays 0, since an idle pod suffers no interference."""
    upper = np.minimum(1.0, (np.floor(values * buckets) + 1.0) / buckets)
    return np.where(values <= 0.0, 0.0, upper)


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Interference over the host's CPU and memory utilisation, ``values[cpu, memory]``, bilinearly interpolated.

    Bilinear interpolation commutes with sums: a node's surface is the sum of its pods'.
    """

    values: Floats

    def at(self, cpu_ratio: float, memory_ratio: float) -> float:
        """The value at one point; utilisations are clipped to [0, 1]."""
        one = np.ones(1)
        return float(interpolated(self.values[None], cpu_ratio * one, memory_ratio * one)[0])


def surface_of(model: InterferenceModel, buckets: int | None = BUCKETS) -> Surface:
    """The surface of one pod; ``buckets`` None: the model's values as they are."""
    cpu, memory = np.meshgrid(np.linspace(0, 1, CPU_STEPS), np.linspace(0, 1, MEMORY_STEPS), indexing="ij")
    values = np.asarray(model(cpu, memory), dtype=np.float64)
    return Surface(values if buckets is None else bucketed(values, buckets))


def interpolated(surfaces: Floats, cpu_ratios: Floats, memory_ratios: Floats) -> Floats:
    """The value of each surface of an array [n, cpu, memory] at the utilisations of its row."""
    n, cpu_points, memory_points = surfaces.shape
    u = np.clip(cpu_ratios, 0.0, 1.0) * (cpu_points - 1)
    v = np.clip(memory_ratios, 0.0, 1.0) * (memory_points - 1)
    i = np.minimum(u.astype(np.intp), cpu_points - 2)
    j = np.minimum(v.astype(np.intp), memory_points - 2)
    u, v, row = u - i, v - j, np.arange(n)
    low = surfaces[row, i, j] * (1 - v) + surfaces[row, i, j + 1] * v
    high = surfaces[row, i + 1, j] * (1 - v) + surfaces[row, i + 1, j + 1] * v
    result: Floats = low * (1 - u) + high * u
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """A pod, waiting or running.

    ``cores``, ``memory_bytes``: its requests. ``interference``: interference that it would suffer; None: unknown,
    counted as 0. ``cores_law``, ``memory_law``: outcomes of one task's use with their probabilities; empty: the
    request. ``work_cpu_s``: CPU time of one task; infinite for a service. ``stages``: demand of shared resources over
    time, from its start. ``overdue``: it has waited too long to be delayed further.
    """

    name: str
    application: str
    kind: PodKind
    cores: float
    memory_bytes: float
    interference: Surface | None = None
    cores_law: Mapping[float, float] = field(default_factory=dict)
    memory_law: Mapping[float, float] = field(default_factory=dict)
    work_cpu_s: float = math.inf
    stages: Mapping[str, Sequence[DemandStage]] = field(default_factory=dict)
    overdue: bool = False

    def laws(self) -> tuple[Mapping[float, float], Mapping[float, float]]:
        """Distributions of its CPU and memory use; its request with certainty if there is no history."""
        return self.cores_law or {self.cores: 1.0}, self.memory_law or {self.memory_bytes: 1.0}


@dataclass(frozen=True, slots=True, eq=False)
class NodeProfile:
    """A node's published profile. Times are in the caller's clock.

    ``pods``: in order of arrival. ``used_cores``, ``used_bytes``: recent use of all pods. ``p99_cores``: sum of the
    pods' own 99th percentiles. ``mean_cores``, ``sd_cores``: mean and standard deviation of the total over a day.
    ``running_cores``, ``running_memory``: distributions of all pods' combined use; None: use their requests.
    ``timelines``: availability of each shared resource over time, by name; ``capacities``: their totals.
    """

    node: str
    generation: int
    made_s: float
    ttl_s: float
    cores: float
    memory_bytes: float
    pods: tuple[Pod, ...] = ()
    used_cores: float = 0.0
    used_bytes: float = 0.0
    p99_cores: float = 0.0
    mean_cores: float = 0.0
    sd_cores: float = 0.0
    running_cores: GridDistribution | None = None
    running_memory: GridDistribution | None = None
    timelines: Mapping[str, tuple[AvailableInterval, ...]] = field(default_factory=dict)
    capacities: Mapping[str, float] = field(default_factory=dict)

    @property
    def requested_cores(self) -> float:
        """CPU requests of all pods."""
        return math.fsum(pod.cores for pod in self.pods)

    @property
    def requested_bytes(self) -> float:
        """Memory requests of all pods, in bytes."""
        return math.fsum(pod.memory_bytes for pod in self.pods)
