"""Workloads as the operator declares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from perphd.domain.reading import Reading, available

LABEL_PREFIX: Final = "perphd.io/"
"""What labels and annotations begin with that tell perphd, or a scheduler that asks it, something."""


class Kind(StrEnum):
    """What a workload is to perphd: protected, or giving way."""

    LRA = "lra"
    BATCH = "batch"


class Mode(StrEnum):
    """``observe`` decides and writes nothing; ``enforce`` writes."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class Touch(StrEnum):
    """What may be changed for an LRA's sake: batch's settings, or the LRA's own cores and cache as well."""

    BATCH = "batch"
    ALL = "all"


class Exploration(StrEnum):
    """What may be tried out of which nothing is known yet.

    ``batch``: only what changes batch's settings alone and is not predicted to be worse for the LRA; then a target that
    is out of reach is given up after a handful of changes.
    """

    OFF = "off"
    BATCH = "batch"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Objective:
    """What an LRA is to be kept at.

    ``tolerance_pct``: accepted loss of work against the model's prediction at the reference allocation under
    the present load (V* = (1 - tolerance) x prediction); ``delay_tolerance_pct``: accepted growth of delay, likewise.
    The absolute objectives, when given, are used instead.
    """

    tolerance_pct: float = 10.0
    delay_tolerance_pct: float = 50.0
    min_work_rate_per_s: float | None = None
    max_latency_ms: float | None = None
    latency_percentile: str = "p95"

    def is_met(self, work_per_s: Reading, latency_ms: Reading) -> bool:
        """True if there are absolute objectives and what was seen of the application keeps them all.

        Args:
            work_per_s: its own work rate.
            latency_ms: its own ``latency_percentile``.
        """
        least, most = self.min_work_rate_per_s, self.max_latency_ms
        enough = least is None or (available(work_per_s) and work_per_s >= least)
        soon = most is None or (available(latency_ms) and latency_ms <= most)
        return (least, most) != (None, None) and enough and soon


@dataclass(frozen=True, slots=True)
class SliSpec:
    """Where an application's own service-level indicators come from.

    ``source``: ``mysql``, ``postgresql``, ``redis``, ``prometheus``, ``tcp``, ``file``, ``command`` or ``push``;
    ``options`` are that source's settings, sorted pairs of text, already validated.
    """

    source: str
    options: tuple[tuple[str, str], ...] = ()

    def get(self, key: str, default: str = "") -> str:
        """The option's text, or ``default``."""
        return next((value for name, value in self.options if name == key), default)


SLOW_SOURCES: Final = frozenset({"command", "file", "push"})
"""Sources of SLIs that are not to be asked more often than usual: what they tell is of the application's own pace, or
each answer costs a process."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One workload = one cgroup subtree, named by its path below the cgroup root (``/system.slice/x.service``).

    ``match``: how that path was, or is to be, found (docs/config.md); empty where it was given. As declared, a
    workload that is to be found has no ``cgroup`` yet. ``app_class``: what kind of application it is, for the
    beginning of its model; ``none`` if it does not say. ``policy``: thresholds, rates and delays that differ from the
    host's for this LRA, sorted pairs of key and value, already validated. ``version_from``: what tells one version of
    the application from another: ``auto``, ``none``, ``file:PATH`` or ``label:KEY``. ``band``: gold, silver or copper;
    None: silver for an LRA, copper for batch. ``reserved_memory_bytes``: 0 if it does not say; ``shape``: no, core or
    elastic; ``application``: empty if it is one by itself. ``touch``, ``exploration``: what an LRA's protection may
    change and try; declared in a file or by request, ``batch`` unless it says otherwise. ``declared_by``: what it says
    of itself and where, if nobody else declared it; empty for what the operator declared.

    Of batch: ``min_cores``: CPU time that it gets per time, averaged over ten seconds; None: none is guaranteed.
    ``max_starvation_s``: the longest time without progress while it waits for a CPU.
    """

    name: str
    kind: Kind
    cgroup: str
    priority: int = 100
    mode: Mode | None = None
    objective: Objective = field(default_factory=Objective)
    sli: SliSpec | None = None
    min_cores: float | None = None
    max_starvation_s: float | None = None
    min_memory_bytes: int = 0
    match: str = ""
    app_class: str = "none"
    policy: tuple[tuple[str, float], ...] = ()
    version_from: str = "auto"
    band: str | None = None
    reserved_memory_bytes: int = 0
    shape: str = "no"
    application: str = ""
    touch: Touch = Touch.ALL
    exploration: Exploration = Exploration.ALL
    declared_by: str = ""

    @property
    def least_cores(self) -> float:
        """Cores to which batch is confined at least."""
        return 1.0 if self.min_cores is None else self.min_cores

    @property
    def guaranteed_cores(self) -> float:
        """CPU time per time that batch gets at least; 0: none is guaranteed."""
        return 0.0 if self.min_cores is None else self.min_cores
