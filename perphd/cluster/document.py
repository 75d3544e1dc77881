"""Data that a node publishes about itself, and its answer about a hypothetical pod. CPUs are logical CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import Allocation
from perphd.domain.decision import Cause, Health
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.whatif import Effect
from perphd.domain.workload import Mode

NODE_TTL_S: Final = 30.0
"""Time to live of a node document; with a stale one, a scheduler falls back on requests."""


def is_current(made_s: float, ttl_s: float, now_s: float) -> bool:
    """True if at most ``ttl_s`` has passed since ``made_s``. False also if ``made_s`` is more than ``ttl_s`` in the
    future, because the clock was then set back.
    """
    return abs(now_s - made_s) <= ttl_s


@dataclass(frozen=True, slots=True)
class NodeAmounts:
    """An amount of CPUs and one of memory."""

    cpus: Reading
    memory_bytes: Reading


@dataclass(frozen=True, slots=True)
class ResourceForecast:
    """Forecast use of ``cpu`` or ``memory`` by all workloads together (CPUs or bytes).

    ``mean``, ``p99``: mean and 99th percentile of the maximum in the next minute, summed over the workloads. ``sd``:
    standard deviation that follows from both. ``peak``: maximum within the next hour, by the back-tested predictor
    ``predictor``.
    """

    resource: str
    mean: Reading
    sd: Reading
    p99: Reading
    peak: Reading
    predictor: str = ""


@dataclass(frozen=True, slots=True)
class CopperRoom:
    """Capacity for copper, from reserved but unused resources. Only published; has no effect on the host.

    ``offered``: capacity for all of copper. ``used``: the part that running copper uses. ``allocatable``: the part left
    for a new pod. ``margin``: capacity held back for forecast errors. ``source``: ``queue`` (the batch queue's
    back-tested offer) or ``forecast``. ``reason``: why the capacity is less than expected; empty if it is not.
    ``starved_s``: the longest wait of a copper workload that is still waiting for a CPU and has got none meanwhile.
    """

    offered: NodeAmounts
    used: NodeAmounts
    allocatable: NodeAmounts
    margin: NodeAmounts
    source: str
    reason: str = ""
    starved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Loss of an LRA with one unit less of a resource, as a share of its present predicted score.

    ``unit``: the size of one unit.
    """

    resource: str
    unit: str
    loss_ratio: Reading


@dataclass(frozen=True, slots=True)
class NodeLra:
    """One LRA: its state, its score against its target (1 meets it), and the cost of one unit less of each resource.

    ``protected``: the allocation in force; None: there is none. ``support``: effective number of samples behind the
    predicted costs.
    """

    name: str
    health: Health
    cause: Cause
    score: Reading
    protected: Allocation | None
    sensitivity: tuple[UnitCost, ...]
    support: float


@dataclass(frozen=True, slots=True)
class NodeAntagonist:
    """An antagonist: ``culprit`` disturbs ``lra`` through ``cause``, according to the last verdict."""

    culprit: str
    lra: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class FreeInterval:
    """Capacity expected to be free from ``start_s`` to ``end_s`` (seconds from now)."""

    start_s: float
    end_s: float
    free: NodeAmounts


@dataclass(frozen=True, slots=True)
class CacheHeadroom:
    """Ways of each last-level cache not taken by any protection, and memory bandwidth.

    ``throttle_pct``: the strongest throttle of batch in force; 100: none.
    """

    llc_ways: Reading
    llc_ways_free: Reading
    mbw_used_bytes_per_s: Reading
    throttle_pct: Reading


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """The state of one node.

    ``generation``: changes whenever the node's offer does; reservations name it. ``made_unix_s``, ``ttl_s``: the
    document is stale after their sum. ``confidence``: 0 to 1, that of the least certain LRA; 1 without LRAs.
    """

    generation: int
    made_unix_s: float
    ttl_s: float
    mode: Mode
    confidence: float
    capacity: NodeAmounts
    reserved: NodeAmounts
    used: NodeAmounts
    forecast: tuple[ResourceForecast, ...]
    copper: CopperRoom
    lras: tuple[NodeLra, ...]
    antagonists: tuple[NodeAntagonist, ...]
    available: tuple[FreeInterval, ...]
    cache: CacheHeadroom
    held: tuple[HeldAmount, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldAmount:
    """A reservation or a grant. ``expires_in_s``: seconds until a reservation lapses; None for a grant."""

    holder: str
    band: str
    amounts: NodeAmounts
    expires_in_s: float | None


@dataclass(frozen=True, slots=True)
class PodLoss:
    """Cost of a pod for one LRA: the share of its predicted score that it loses under the protection in force.

    ``effect``: the prediction under the best possible protection; None unless that was requested.
    """

    lra: str
    loss_ratio: Reading
    effect: Effect | None


@dataclass(frozen=True, slots=True)
class PodImpact:
    """A pod's predicted cost for every LRA and for the node.

    ``marginal``, ``absolute``: Optum's score with predicted loss in place of CPU pressure. ``terms``: parts of the
    marginal score. ``cpu_over``, ``memory_over``: probability that all workloads with the pod need more than the node
    has.
    """

    generation: int
    accepted: bool
    reasons: tuple[str, ...]
    losses: tuple[PodLoss, ...]
    marginal: Reading
    absolute: Reading
    terms: tuple[ScoreTerm, ...]
    cpu_over: Reading = NOT_MEASURED
    memory_over: Reading = NOT_MEASURED
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoreTerm:
    """One term of the marginal score."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """A new reservation; commit it by ``token`` before it lapses."""

    holder: str
    band: str
    amounts: NodeAmounts
    generation: int
    token: int
    expires_in_s: float | None
