"""kubelet's static CPU manager: the CPUs that it has given to single containers, and whose cpusets it sets itself.

It writes its decisions to a state file (kubernetes.io, "Control CPU Management Policies on the Node"). It compares a
container's cpuset with what it wrote last, not with the kernel: kubelet 1.36 repairs a foreign value once and not
again. Nothing would undo a mistake. So its cpusets are left alone, and its exclusive CPUs are given to nobody else.
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
"""As often as kubelet itself reconciles."""


@dataclass(frozen=True, slots=True)
class CpuManager:
    """What the state file says. ``exclusive``: CPUs that belong to single containers."""

    is_static: bool = False
    exclusive: CpuSet = CpuSet()


def parse_state(data: bytes) -> CpuManager:
    """Read the state file (both of its versions); what cannot be read says that nothing is exclusive."""
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
        """What kubelet has decided; nothing on a host without it."""
        if self._looked_s is None or not 0 <= now_s - self._looked_s < LOOK_AGAIN_S:
            self._looked_s = now_s
            try:
                self._known = parse_state(self._fs.read(STATE))
            except KernelError:
                self._known = CpuManager()
        return self._known

    def refusal(self, cgroup: str, now_s: float) -> str:
        """Why the cpuset of this group is not to be set; empty if it may be."""
        if in_kubernetes(cgroup) and self.cpu_manager(now_s).is_static:
            return f"kubelet's static CPU manager sets the cpusets of pods ({STATE}): they are left to it"
        return ""
