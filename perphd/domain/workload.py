"""Workloads as the operator declares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from perphd.domain.reading import Reading, available

LABEL_PREFIX: Final = "perphd.io/"
"""Prefix of the labels and annotations that perphd, or a scheduler that asks it, reads."""


class Kind(StrEnum):
    """Role of a workload: protected (LRA) or giving way (batch)."""

    LRA = "lra"
    BATCH = "batch"


class Mode(StrEnum):
    """``observe`` decides without writing; ``enforce`` writes."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class Touch(StrEnum):
    """Settings that perphd may change for an LRA: batch's alone, or the LRA's own cores and cache as well."""

    BATCH = "batch"
    ALL = "all"


class Exploration(StrEnum):
    """Steps that perphd may try although the model cannot predict them yet.

    ``batch``: only steps that change batch's settings alone and are not predicted to harm the LRA.
    """

    OFF = "off"
    BATCH = "batch"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Objective:
    """Performance target of an LRA.

    ``tolerance_pct``: accepted loss of work, relative to the model's prediction at the reference allocation
    under the present load (V* = (1 - tolerance) x prediction). ``delay_tolerance_pct``: accepted growth of delay,
    relative to the same prediction. Absolute objectives replace these tolerances if the operator sets them.
    """

    tolerance_pct: float = 10.0
    delay_tolerance_pct: float = 50.0
    min_work_rate_per_s: float | None = None
    max_latency_ms: float | None = None
    latency_percentile: str = "p95"

    def is_met(self, work_per_s: Reading, latency_ms: Reading) -> bool:
        """True if there are absolute objectives and the measured values meet them all.

        Args:
            work_per_s: the application's work rate.
            latency_ms: its latency at ``latency_percentile``.
        """
        least, most = self.min_work_rate_per_s, self.max_latency_ms
        enough = least is None or (available(work_per_s) and work_per_s >= least)
        soon = most is None or (available(latency_ms) and latency_ms <= most)
        return (least, most) != (None, None) and enough and soon


@dataclass(frozen=True, slots=True)
class SliSpec:
    """Source of an application's own service-level indicators (SLIs).

    ``source``: ``mysql``, ``postgresql``, ``redis``, ``prometheus``, ``tcp``, ``file``, ``command`` or
    ``push``. ``options``: validated settings of that source, as sorted pairs of text.
    """

    source: str
    options: tuple[tuple[str, str], ...] = ()

    def get(self, key: str, default: str = "") -> str:
        """The option's text, or ``default``."""
        return next((value for name, value in self.options if name == key), default)


SLOW_SOURCES: Final = frozenset({"command", "file", "push"})
"""SLI sources that are never read faster than usual.

The application sets their pace, or each reading costs a process.
"""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One workload: a cgroup subtree, named by its path below the cgroup root (``/system.slice/x.service``).

    - ``cgroup``: empty until the workload is found. ``match``: how to find it (docs/config.md); empty if the
      path was given.
    - ``app_class``: kind of application, from which its model starts; ``none`` if undeclared.
    - ``policy``: thresholds, rates and delays of this LRA that differ from the host's, as sorted pairs of name and
      value.
    - ``version_from``: source of the application's version: ``auto``, ``none``, ``file:PATH`` or
      ``label:KEY``.
    - ``band``: gold, silver or copper; None: silver for an LRA, copper for batch.
    - ``reserved_memory_bytes``, ``reserved_cpus`` (LRAs with a band): reservations; 0 if undeclared.
    - ``io_latency_ms`` (LRAs, silver batch): target of ``io.latency`` on every disk; 0: none.
    - ``shape``: whether the resource shaper may size its memory: ``no``, ``core`` or ``elastic``.
    - ``application``: the application of which it is a part; empty if it is an application of its own.
    - ``touch``, ``exploration``: what perphd may change and try to protect an LRA. If declared in a file or
      by request, the default is ``batch``.
    - ``declared_by``: where the workload declared itself; empty if the operator declared it.
    - ``min_cores`` (batch): guaranteed CPU, averaged over ten seconds; None: no guarantee.
    - ``max_starvation_s`` (batch): longest time without progress while it waits for a CPU.
    - ``takes_hints`` (batch): it uses less of a contended device when perphd's hint asks for it.
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
    takes_hints: bool = False
    reserved_cpus: float = 0.0
    io_latency_ms: float = 0.0

    @property
    def gives_way(self) -> bool:
        """True if perphd may restrict the workload for LRAs: all batch except silver."""
        return self.kind is Kind.BATCH and self.band != "silver"

    @property
    def least_cores(self) -> float:
        """Minimum number of cores to which perphd confines this batch workload."""
        return 1.0 if self.min_cores is None else self.min_cores

    @property
    def guaranteed_cores(self) -> float:
        """CPU guaranteed to batch, in cores; 0: no guarantee."""
        return 0.0 if self.min_cores is None else self.min_cores
