"""Reads the state of kubelet's static CPU manager: exclusive CPUs of containers, and kubelet's own cpusets.

kubelet keeps its decisions in a state file (kubernetes.io, "Control CPU Management Policies on the Node"). It
compares a container's cpuset with its own last write, not with the kernel's value: kubelet 1.36 repairs a
foreign value once and never again, so a mistake would persist. perphd therefore leaves these cpusets
alone and gives kubelet's exclusive CPUs to no other workload.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import KernelError
from perphd.host.containers import in_kubernetes
from perphd.host.fs import KernelFs

STATE: Final = "/var/lib/kubelet/cpu_manager_state"
LOOK_AGAIN_S: Final = 10.0
"""Seconds between two reads, equal to kubelet's own reconcile period."""


@dataclass(frozen=True, slots=True)
class CpuManager:
    """Contents of the state file. ``exclusive``: CPUs that belong to individual containers."""

    is_static: bool = False
    exclusive: CpuSet = CpuSet()


def parse_state(data: bytes) -> CpuManager:
    """Parse the state file (either version); an unreadable file means that no CPUs are exclusive."""
    try:
        state = json.loads(data)
        if state.get("policyName") != "static":
            return CpuManager()
        exclusive = CpuSet()
        for entry in (state.get("entries") or {}).values():
            for text in entry.values() if isinstance(entry, dict) else [entry]:
                exclusive = exclusive | CpuSet.parse(text)
        return CpuManager(True, exclusive)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return CpuManager()


class Kubelet:
    """The state file, read again every ten seconds."""

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._known = CpuManager()
        self._looked_s: float | None = None

    def cpu_manager(self, now_s: float) -> CpuManager:
        """The present CPU assignment of kubelet; empty on a host without kubelet."""
        if self._looked_s is None or not 0 <= now_s - self._looked_s < LOOK_AGAIN_S:
            self._looked_s = now_s
            try:
                self._known = parse_state(self._fs.read(STATE))
            except KernelError:
                self._known = CpuManager()
        return self._known

    def refusal(self, cgroup: str, now_s: float) -> str:
        """Reason why the cpuset of this group must not be set; empty if it may be set."""
        if in_kubernetes(cgroup) and self.cpu_manager(now_s).is_static:
            return f"kubelet's static CPU manager sets the cpusets of pods ({STATE}): perphd does not change them"
        return ""
