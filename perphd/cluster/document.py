"""What a node publishes of itself, and what it answers about a pod that might come. CPUs are logical ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.allocation import Allocation
from perphd.domain.decision import Cause, Health
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.whatif import Effect
from perphd.domain.workload import Mode

NODE_TTL_S: Final = 30.0
"""A node document older than this is stale: a scheduler falls back on requests."""


@dataclass(frozen=True, slots=True)
class NodeAmounts:
    """CPUs and memory."""

    cpus: Reading
    memory_bytes: Reading


@dataclass(frozen=True, slots=True)
class ResourceForecast:
    """What all workloads together will use of ``cpu`` or ``memory`` (CPUs or bytes).

    ``mean``, ``p99``: of the greatest value in the next minute, the workloads' own bounds added up; ``sd``: from both.
    ``peak``: within the next hour, by the back-tested predictor ``predictor``.
    """

    resource: str
    mean: Reading
    sd: Reading
    p99: Reading
    peak: Reading
    predictor: str = ""


@dataclass(frozen=True, slots=True)
class CopperRoom:
    """What copper may be given, from what is reserved and not used. Published; nothing on the host follows from it.

    ``offered``: for all of copper; ``used``: by copper that runs; ``allocatable``: what is left for a pod that comes.
    ``margin``: kept back for errors of the forecast. ``source``: ``queue`` (the batch
    queue's offer, which is back-tested) or ``forecast``. ``reason``: why there is less than one might expect, or empty.
    """

    offered: NodeAmounts
    used: NodeAmounts
    allocatable: NodeAmounts
    margin: NodeAmounts
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What an LRA would lose if it had one unit less of a resource: the share of its present predicted score.

    ``unit``: what one unit is here.
    """

    resource: str
    unit: str
    loss_ratio: Reading


@dataclass(frozen=True, slots=True)
class NodeLra:
    """One LRA: how it is, the score against its target (1 meets it), and what one unit less of each resource costs."""

    name: str
    health: Health
    cause: Cause
    score: Reading
    protected: Allocation | None
    sensitivity: tuple[UnitCost, ...]
    support: float


@dataclass(frozen=True, slots=True)
class NodeAntagonist:
    """``culprit`` disturbs ``lra`` on ``cause``, by the last verdict."""

    culprit: str
    lra: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class FreeInterval:
    """From ``start_s`` to ``end_s`` (seconds from now), so much is expected to be free."""

    start_s: float
    end_s: float
    free: NodeAmounts


@dataclass(frozen=True, slots=True)
class CacheHeadroom:
    """Ways of each last-level cache that nobody's protection takes, and memory bandwidth.

    ``throttle_pct``: the strongest throttle of batch in force; 100: none.
    """

    llc_ways: Reading
    llc_ways_free: Reading
    mbw_used_bytes_per_s: Reading
    throttle_pct: Reading


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """The state of one node. ``generation`` changes whenever what the node offers has changed: a reservation names it.

    ``made_unix_s``, ``ttl_s``: it is stale after both together. ``confidence``: 0 to 1, of the LRA about which least is
    known; 1 without LRAs.
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
    """A reservation or a grant. ``expires_in_s``: until a reservation lapses; a grant has none."""

    holder: str
    band: str
    amounts: NodeAmounts
    expires_in_s: float | None


@dataclass(frozen=True, slots=True)
class PodLoss:
    """What a pod would cost one LRA: the share of its predicted score, under what is in force.

    ``effect``: with the best protection that perphd could give it; None unless that was searched for.
    """

    lra: str
    loss_ratio: Reading
    effect: Effect | None


@dataclass(frozen=True, slots=True)
class PodImpact:
    """The answer to "what would this pod cost whom".

    ``marginal``, ``absolute``: Optum's score with predicted loss in place of CPU pressure, as terms that add up.
    ``cpu_over``, ``memory_over``: the chance that all workloads with the pod need more than the node has.
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
    """A reservation that was made: commit it by ``token`` before it lapses."""

    holder: str
    band: str
    amounts: NodeAmounts
    generation: int
    token: int
    expires_in_s: float | None
