"""Traffic classes: a device may refuse them temporarily, and they need a qdisc and BPF programs."""

from __future__ import annotations

from perphd.host.egress_fs import EgressFs
from perphd.isolation.backends.backend import Backend


class TrafficClasses(Backend):
    """Egress ceilings."""

    def __init__(self, egress: EgressFs) -> None:
        self._fs = egress

    def why_not_now(self, path: str) -> str:
        """Reason why a device cannot get classes, such as another program's qdisc; empty if it can."""
        return self._fs.why_not_now(path)

    def tidy(self, path: str) -> str:
        """Remove the class, and the qdisc and program that served only it."""
        return self._fs.given_back(path)
