"""Contents of a Res-Perf model, as values for display and the API."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.allocation import Allocation
from perphd.domain.policy import Band, ModelContext
from perphd.domain.reading import Reading


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Summary of one model.

    - ``samples``: number of samples learned; ``cells``: distinct allocations and regimes among them.
    - ``closed``: the load is a closed loop (``ResPerfModel.is_closed``).
    - ``origin``: where the model started from, in words.
    - ``saved_ago_s``: seconds since its newest file was written.
    - ``version``: version of the application; empty if unknown. ``earlier_versions``: number of other
      versions with a stored model.
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
class OriginHost:
    """A host from whose contribution a model started.

    ``age_s``: age of the contribution when the model started. ``distance``: how far its hardware differs from this
    host's, from 0 (the same) to 2 (not used). ``version``: version of the application on that host.
    ``share_ratio``: its share of the weight of all hosts.
    """

    contributor: str
    generation: int
    age_s: float
    distance: float
    version: str
    share_ratio: float


@dataclass(frozen=True, slots=True)
class OriginLeftOut:
    """A host whose contribution was not used, with the reason."""

    contributor: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForecastOrigin:
    """Origin of the forecasts of one series of a workload: the scores of the forecasters on other hosts.

    ``ranked``: the forecasters that those hosts have scored, best first; empty if too few hosts have scored this
    series. ``in_force``: False once the workload's own scores decide. ``looked_unix_s``: when perphd read the
    contributions.
    """

    series: str
    ranked: tuple[str, ...]
    in_force: bool
    looked_unix_s: float
    hosts: tuple[OriginHost, ...] = ()
    left_out: tuple[OriginLeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The origin of a workload's model and of its forecasts.

    ``lra``: name of the workload. ``origin``: origin of the model, in words. ``outcome``: the result of a start
    from other hosts, in words; empty if there was no such start. ``points``: number of points of the model for
    which enough hosts had an estimate. ``looked_unix_s``: when perphd read their contributions. ``application``:
    the name by which other hosts know the workload; empty if it is the same name.
    """

    lra: str
    origin: str
    outcome: str = ""
    looked_unix_s: float = 0.0
    points: int = 0
    hosts: tuple[OriginHost, ...] = ()
    left_out: tuple[OriginLeftOut, ...] = ()
    application: str = ""
    forecasts: tuple[ForecastOrigin, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceBelief:
    """A value that the model expects at the reference allocation, with its band.

    ``load_per_s``: middle of the load bucket; Unavailable: the value holds for all loads. ``signal``: as in
    ``domain.policy.ResPerfModel.reference``, but stall shares are in % as measured. ``low``, ``high``: ends of the
    band. ``provisional``: the value was learned while undeclared work filled the host.
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
    """Predicted effect of one allocation: ratios to the reference, and the cores that batch gets."""

    allocation: Allocation
    work: Band
    delay: Band
    batch_cores: Band


@dataclass(frozen=True, slots=True)
class SkippedSamples:
    """Number of samples excluded from learning for one reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelView:
    """The complete state of a model.

    ``context``: the circumstances for which ``lattice`` was predicted. ``current``: the allocation in force.
    ``confidence_z``: half width, in standard deviations, of the bounds that the policy uses.
    """

    summary: ModelSummary
    reference: tuple[ReferenceBelief, ...]
    context: ModelContext
    confidence_z: float
    current: Allocation
    lattice: tuple[AllocationBelief, ...]
    skipped: tuple[SkippedSamples, ...]
