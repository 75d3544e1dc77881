"""Reads facts about a job from its control group: first process and image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError, PerphError
from perphd.host.cgroup.group import Cgroups
from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.containers import ContainerNames, parse_path
from perphd.host.fs import KernelFs, read_text
from perphd.host.process_stat import start_ticks
from perphd.host.systemd_fs import unit_of

MOST_PROCESSES: Final = 32
"""Maximum number of processes examined per group, lowest process ids first."""
MOST_ARGV_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FirstProcess:
    """The oldest process of a group."""

    uid: int
    argv: tuple[str, ...]


class JobFacts:
    """Reads facts about jobs. A call takes some 0.2 ms: use it at the beginning of a job, not at every tick."""

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._cgroups = fs, Cgroups(fs, hierarchies)

    def first_process(self, cgroup: str) -> FirstProcess | None:
        """The oldest process in this group and its descendants; None if none can be read."""
        try:
            pids = sorted(self._cgroups.group(cgroup).procs())[:MOST_PROCESSES]
        except PerphError:
            return None
        began = {pid: start for pid in pids if (start := start_ticks(self._fs, pid)) is not None}
        for pid in sorted(began, key=lambda each: (began[each], each)):
            try:
                argv = self._fs.read(f"/proc/{pid}/cmdline")[:MOST_ARGV_BYTES]
                uid = self._uid(pid)
            except (KernelError, ValueError):
                continue
            words = argv.decode(errors="replace").rstrip("\0").split("\0")
            return FirstProcess(uid, tuple(words) if any(words) else ())
        return None

    def image(self, cgroup: str) -> str:
        """The container's image, else the systemd unit; empty if the group is neither."""
        try:
            if parse_path(cgroup).has_image:
                return ContainerNames(self._fs).image(cgroup)
        except PerphError:
            return ""
        return unit_of(cgroup)

    def _uid(self, pid: int) -> int:
        for line in read_text(self._fs, f"/proc/{pid}/status").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
        raise ValueError(f"/proc/{pid}/status names no user")
