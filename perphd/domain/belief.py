"""What a Res-Perf model believes, as values that can be shown and sent."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import Reading


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One model in a line.

    ``samples``: learned from so far; ``cells``: allocations and regimes that it has visited; ``origin``: where it
    began; ``saved_ago_s``: age of its newest file; ``version``: of the application (empty: it is not known);
    ``earlier_versions``: so many others have a model that is kept.
    """

    lra: str
    samples: int
    cells: int
    closed: bool
    origin: str
    saved_ago_s: Reading
    version: str = ""
    earlier_versions: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceBelief:
    """An undisturbed value. ``load_per_s``: middle of its load bucket; Unavailable: over all loads.

    ``signal`` as in ``domain.policy.ResPerfModel.reference``, but stall shares are in % as measured.
    ``provisional``: learned while undeclared work filled the host.
    """

    signal: str
    load_per_s: Reading
    value: float
    low: float
    high: float
    support: float
    provisional: bool = False


@dataclass(frozen=True, slots=True)
class AllocationBelief:
    """What one allocation is expected to do: ratios to the reference, and the cores that batch gets."""

    allocation: Allocation
    work: Band
    delay: Band
    batch_cores: Band


@dataclass(frozen=True, slots=True)
class SkippedSamples:
    """So many samples were not learned from, and why."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelView:
    """All that a model believes. ``context``: the circumstances that ``lattice`` is asked for; ``current``: in force.

    ``confidence_z``: half width, in standard deviations, of the bounds that the policy acts on.
    """

    summary: ModelSummary
    reference: tuple[ReferenceBelief, ...]
    context: ModelContext
    confidence_z: float
    current: Allocation
    lattice: tuple[AllocationBelief, ...]
    skipped: tuple[SkippedSamples, ...]
