"""CPU use during a window, by owner: the lab's groups, everything else, the hypervisor."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tools.lab import groups as g
from tools.lab.groups import Groups
from tools.lab.records import Cores


class Usage:
    """Counters at the start of a window; ``cores`` and ``client_stalled`` give the growth since."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._start_s = time.monotonic()
        self._groups_s = {name: groups.cpu_seconds(name) for name in g.CHILDREN}
        self._machine_s = machine_seconds()
        self._stalled_s = groups.stalled_seconds(g.CLIENT)

    def cores(self, one_group: bool) -> Cores:
        """CPUs used since the start. ``one_group``: database and batch cannot be told apart; batch reads 0."""
        spent_s = time.monotonic() - self._start_s
        used = {
            name: (self._groups.cpu_seconds(name) - before) / spent_s
            for name, before in self._groups_s.items()
        }
        others = stolen = None
        now = machine_seconds()
        if now is not None and self._machine_s is not None:
            busy, stolen = (
                (after - before) / spent_s for after, before in zip(now, self._machine_s, strict=True)
            )
            others = max(0.0, busy - sum(used.values()))
        return Cores(used[g.NATIVE if one_group else g.LRA], used[g.BATCH], used[g.CLIENT], others, stolen)

    def client_stalled(self) -> float | None:
        """Share of the time in which some task of the load generator waited for a CPU."""
        now_s = self._groups.stalled_seconds(g.CLIENT)
        if now_s is None or self._stalled_s is None:
            return None
        return (now_s - self._stalled_s) / (time.monotonic() - self._start_s)


def wait_for_quiet(cores: float, patience_s: float) -> bool:
    """Wait until less than this many CPUs in total are used for a second; False if the wait timed out."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        before = machine_seconds()
        time.sleep(1.0)
        after = machine_seconds()
        if before is None or after is None or after[0] - before[0] < cores:
            return True
    return False


def machine_seconds(text: str | None = None) -> tuple[float, float] | None:
    """CPU seconds that the whole machine was busy, and that the hypervisor stole, from /proc/stat."""
    if text is None:
        text = Path("/proc/stat").read_text()
    fields = text.partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    per_s = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / per_s, steal / per_s
