"""Events of perf_event_open(2): kinds, codes, and the interface of counter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError, Unsupported
from perphd.domain.reading import Reading, Unavailable

HARDWARE_TYPE: Final = 0
"""PERF_TYPE_HARDWARE: the kernel's generalised hardware events."""
SOFTWARE_TYPE: Final = 1
"""PERF_TYPE_SOFTWARE."""


class PerfEventKind(Enum):
    """Countable events; the value is the name shown to people. ``EventCodes`` has a host's codes.

    ``STALL_BACKEND``: cycles in which nothing was issued or executed for lack of resources or data.
    ``STALL_MEMORY``: stall cycles that waited for memory beyond the last-level cache.
    """

    INSTRUCTIONS = "instructions"
    CYCLES = "cycles"
    LLC_REFERENCES = "llc-references"
    LLC_MISSES = "llc-misses"
    STALL_BACKEND = "stall-backend"
    STALL_MEMORY = "stall-memory"
    TASK_CLOCK_NS = "task-clock-ns"
    CONTEXT_SWITCHES = "context-switches"
    CPU_MIGRATIONS = "cpu-migrations"
    PAGE_FAULTS = "page-faults"

    __hash__ = object.__hash__  # Enum's own __hash__ is a Python function, called at every lookup

    @property
    def is_hardware(self) -> bool:
        """True if the event needs a PMU."""
        return self not in SOFTWARE_CODES

    @property
    def label(self) -> str:
        """Its name for people, e.g. ``llc-misses``."""
        return self.value


class EventCode(NamedTuple):
    """The kernel's code of an event: ``type`` and ``config`` of perf_event_attr."""

    type: int
    config: int


EventCodes: TypeAlias = Mapping[PerfEventKind, EventCode | Unavailable]
"""A host's code of every event, or the reason why it has none (``perphd.host.pmu``)."""

SOFTWARE_CODES: Final = {
    PerfEventKind.TASK_CLOCK_NS: EventCode(SOFTWARE_TYPE, 1),
    PerfEventKind.CONTEXT_SWITCHES: EventCode(SOFTWARE_TYPE, 3),
    PerfEventKind.CPU_MIGRATIONS: EventCode(SOFTWARE_TYPE, 4),
    PerfEventKind.PAGE_FAULTS: EventCode(SOFTWARE_TYPE, 2),
}
PROCESSOR_UNKNOWN: Final = Unavailable("the code of this event on this processor is unknown")
COMMON_CODES: Final[EventCodes] = MappingProxyType(
    dict.fromkeys(PerfEventKind, PROCESSOR_UNKNOWN)
    | {
        PerfEventKind.INSTRUCTIONS: EventCode(HARDWARE_TYPE, 1),
        PerfEventKind.CYCLES: EventCode(HARDWARE_TYPE, 0),
    }
    | SOFTWARE_CODES
)
"""Events whose code and meaning are the same on every processor."""


HARDWARE_EVENTS: Final = tuple(kind for kind in PerfEventKind if kind.is_hardware)
SOFTWARE_EVENTS: Final = tuple(kind for kind in PerfEventKind if not kind.is_hardware)


class EventRefused(Unsupported):
    """The kernel does not count this event; the caller should do without it.

    Args:
        path: the cgroup's directory.
        operation: the attempted operation.
        errno: the kernel's error number.
        kind: the event.
        too_many: the event can be counted alone, but the group has more events than the PMU has counters.
        advice: a remedy, in words.
    """

    def __init__(
        self,
        path: str,
        operation: str,
        errno: int,
        kind: PerfEventKind,
        too_many: bool = False,
        advice: str = "",
    ) -> None:
        super().__init__(path, operation, errno, advice=advice)
        self.kind, self.too_many = kind, too_many


class EventGroup(Protocol):
    """Open counters of one workload, all active at the same time."""

    def read(self) -> Mapping[PerfEventKind, Reading]:
        """Counts since opening, summed over CPUs, unscaled; they never decrease.

        If counters are shared with other users, the workload ran longer than it was counted; TASK_CLOCK_NS is
        the counted time. If nothing was counted meanwhile, the previous object may be returned.
        """

    @property
    def events(self) -> tuple[PerfEventKind, ...]:
        """The counted events, in the order of opening."""

    @property
    def starved_cpus(self) -> CpuSet:
        """CPUs on which the counters ran for less than half of the workload's time since the last reading.

        This is only a hint, because the kernel's time_enabled is too long on some CPUs after a restart.
        """

    @property
    def lost_cpus(self) -> CpuSet:
        """CPUs that could not be opened or went offline.

        Work on them is not counted until the group is reopened.
        """

    @property
    def fds(self) -> int:
        """Number of open descriptors."""

    def close(self) -> None:
        """Close all descriptors; closing twice is allowed."""


class EventOpener(Protocol):
    """Opens counters: ``open_group`` on a real host, a substitute on a simulated one."""

    def __call__(self, cgroup_dir: str, cpus: CpuSet, events: Sequence[PerfEventKind]) -> EventGroup:
        """Open one group on each CPU; raises KernelError classes."""


@dataclass(frozen=True, slots=True)
class EventSupport:
    """Events that this kernel counts per cgroup. ``missing``: the reason for each of the others."""

    supported: tuple[PerfEventKind, ...]
    missing: Mapping[PerfEventKind, KernelError]
