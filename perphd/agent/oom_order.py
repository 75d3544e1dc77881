"""Checks the ``oom_score_adj`` of workloads' processes, for ``perphctl doctor``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final

from perphd.domain.errors import KernelError
from perphd.domain.workload import WorkloadSpec
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.fs import KernelFs, text_or_empty

SYSTEM_SLICE: Final = "/system.slice"
"""The slice in which systemd runs the host's own daemons."""
MOST_DAEMONS: Final = 200
"""Maximum number of undeclared services to examine."""
MOST_PROCESSES: Final = 256
"""Maximum number of processes to read per workload. Few suffice, because children inherit the value, and requests must
be answered quickly.
"""


class OomOrder:
    """Checks whether the kernel would kill workloads in the order of their declared bands."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._groups = fs, Cgroups(fs, hierarchies)

    def broken(self, specs: Iterable[WorkloadSpec]) -> tuple[str, ...]:
        """A sentence for each running workload that the kernel may kill before a workload of a lower band.

        The host's own daemons, undeclared services of ``system.slice``, should outlive copper.
        """
        everybody = tuple(specs)
        declared = [(spec, spec.band) for spec in everybody if spec.band is not None and spec.cgroup]
        if not declared:
            return ()
        from perphd.qos.bands import QosBand  # a daemon without bands does not load their module
        from perphd.qos.oom_order import OomScores, daemons_at_risk, out_of_order

        found = []
        for spec, band in declared:
            values = self._values(spec.cgroup)
            if values:
                found.append(OomScores(spec.name, QosBand(band), min(values), max(values)))
        declared_groups = {spec.cgroup for spec in everybody}
        daemons = []
        if any(each.band is QosBand.COPPER for each in found):
            for name in self._daemons(declared_groups):
                if values := self._values(f"{SYSTEM_SLICE}/{name}"):
                    daemons.append(OomScores(name, QosBand.SYSTEM, min(values), max(values)))
        return (*out_of_order(found), *daemons_at_risk(daemons, found))

    def _daemons(self, declared: Collection[str]) -> list[str]:
        """The host's services that are not declared."""
        names: set[str] = set()
        for directory in self._groups.group(SYSTEM_SLICE).directories():
            with suppress(KernelError):
                names.update(self._fs.subdirectories(directory))
        services = sorted(names)
        own = [
            name
            for name in services
            if name.endswith(".service") and f"{SYSTEM_SLICE}/{name}" not in declared
        ]
        return own[:MOST_DAEMONS]

    def _values(self, cgroup: str) -> list[int]:
        pids = islice(sorted(self._groups.group(cgroup).procs()), MOST_PROCESSES)
        texts = [text_or_empty(self._fs, f"/proc/{pid}/oom_score_adj").strip() for pid in pids]
        return [int(text) for text in texts if text]  # empty: the process has ended
