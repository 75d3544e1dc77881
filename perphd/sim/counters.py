"""State and counters of a control group: processes, CPU, memory, I/O, performance events."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Process:
    """A process with its threads (the first thread id is the pid), which share its times evenly."""

    pid: int
    tids: tuple[int, ...]
    comm: str


@dataclass(slots=True)
class CpuCounters:
    """cpu.stat, in seconds."""

    usage_s: float = 0.0
    system_s: float = 0.0
    periods: float = 0.0
    throttled_periods: float = 0.0
    throttled_s: float = 0.0


@dataclass(slots=True)
class MemoryCounters:
    """memory.current, memory.stat and memory.events."""

    anon_bytes: float = 0.0
    file_bytes: float = 0.0
    refaults: float = 0.0
    major_faults: float = 0.0
    faults: float = 0.0
    scanned: float = 0.0
    stolen: float = 0.0
    events: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("low", "high", "max", "oom", "oom_kill", "oom_group_kill"), 0)
    )

    @property
    def current_bytes(self) -> float:
        """Memory charged to the group."""
        return self.anon_bytes + self.file_bytes


@dataclass(slots=True)
class IoCounters:
    """io.stat of the one disk."""

    read_bytes: float = 0.0
    written_bytes: float = 0.0
    reads: float = 0.0
    writes: float = 0.0


@dataclass(slots=True)
class PerfCounters:
    """Counters of perf_event_open."""

    instructions: float = 0.0
    cycles: float = 0.0
    llc_misses: float = 0.0
    llc_references: float = 0.0
    task_clock_s: float = 0.0
    switches: float = 0.0
