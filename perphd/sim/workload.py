"""What runs on the simulated host: its demands, not its performance (that is what physics makes of them)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lra:
    """A long-running application that answers requests.

    Exactly one of ``clients`` (closed loop: that many ask again as soon as they are answered) and ``rate_per_s``
    (open loop: requests arrive whatever happens) is set. A request takes ``service_ms`` of CPU when nobody
    disturbs it, ``serial_ms`` of a section that only one request can be in (locks, the log), and ``wait_ms``
    of waiting for nothing of this host. ``threads``: how many CPUs it can use at most.
    ``cache_bytes``: its hot page cache; ``pages_per_request``: pages of it that one request touches.
    """

    name: str
    cgroup: str
    clients: int | None = None
    rate_per_s: float | None = None
    service_ms: float = 0.90
    serial_ms: float = 0.35
    wait_ms: float = 0.45
    threads: int = 32
    anon_bytes: int = 512 << 20
    cache_bytes: int = 1 << 30
    pages_per_request: float = 10.0
    ipc: float = 1.0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate_per_s is None):
            raise ValueError(f"{self.name}: give either clients (closed loop) or rate_per_s (open loop)")


@dataclass(frozen=True, slots=True)
class Batch:
    """A job of CPU-bound threads. ``work_per_core_s``: what one undisturbed CPU gets done in a second.

    ``pollution``: how much of its neighbours' cache it takes, where 1 is an ordinary compute job.
    """

    name: str
    cgroup: str
    threads: int = 4
    work_per_core_s: float = 1.0
    pollution: float = 1.0
    anon_bytes: int = 256 << 20
    cache_bytes: int = 0
    ipc: float = 2.0


Workload = Lra | Batch
