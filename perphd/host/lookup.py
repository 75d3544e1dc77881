"""Finding control groups by what they are: the unit, the container, the process. Reads only; asks no daemon.

Nothing here walks the whole tree: units of this host's systemd lie in slices alone, and containers in slices or in the
folders that their runtimes make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perphd.domain.errors import KernelError, ParseError
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.containers import ContainerNames, parse_path
from perphd.host.fs import KernelFs, ReadsStrangers, read_text
from perphd.host.systemd_fs import unit_of

MAX_GROUPS: Final = 20_000
"""So many directories are looked at in one walk, against trees without an end."""
READ_AGAIN: Final = 16
"""Of so many containers that are known what their runtimes leave is read again in one look."""
_FOLDERS: Final = frozenset(
    {"docker", "libpod_parent", "default", "kubepods", "burstable", "besteffort", "guaranteed"}
)
_POD = re.compile(r"(?:.*-)?pod[0-9a-f_-]{32,36}(?:\.slice)?", re.ASCII)
_CLK_START: Final = 19
"""Field starttime of /proc/PID/stat, counted after the command's closing parenthesis: proc(5)."""

_PID_FILE_BYTES: Final = 64
_PID_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Container:
    """One container's group. ``labels`` None: what the runtime keeps about it cannot be read."""

    cgroup: str
    name: str
    labels: Mapping[str, str] | None


def primary(hierarchies: Hierarchies) -> Hierarchy | None:
    """The tree that is looked through: where processes are divided for their CPU time."""
    if hierarchies.layout is Layout.V2:
        return hierarchies.unified
    return hierarchies.of("cpu") or next(iter(hierarchies.all()), None)


class Lookup:
    """Looks on one host. Walks the tree at most once for each kind between two calls of ``look_anew``.

    What runtimes leave about containers is remembered, and read again for a few at a time: a container may be given
    another name, and a runtime may be late.
    """

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._units: tuple[tuple[str, str], ...] | None = None
        self._containers: tuple[Container, ...] | None = None
        self._known: dict[str, Container] = {}

    def look_anew(self) -> None:
        """What was found so far may be different by now."""
        self._units = self._containers = None

    def children(self, cgroup: str) -> list[str]:
        """Names of the groups directly below one; none if it is gone."""
        tree = primary(self._hierarchies)
        if tree is None:
            return []
        try:
            return self._fs.subdirectories(tree.path(cgroup))
        except KernelError:
            return []

    def exists(self, cgroup: str) -> bool:
        """True if the group is there."""
        return bool(self._hierarchies.directories(self._fs, cgroup))

    def units(self) -> Sequence[tuple[str, str]]:
        """(unit, its group) of everything that lies in slices; slices come before what they hold."""
        if self._units is None:
            groups = self._walk(lambda name: name.endswith(".slice"))
            self._units = tuple((unit, cgroup) for cgroup in groups if (unit := unit_of(cgroup)))
        return self._units

    def containers(self) -> Sequence[Container]:
        """Every container's group, with its name and labels."""
        if self._containers is None:
            there = [cgroup for cgroup in self._walk(_may_hold_containers) if parse_path(cgroup).container_id]
            present = set(there)
            # In the order in which they were read: the first are those of which the least is known by now.
            known = [cgroup for cgroup in self._known if cgroup in present]
            kept = {cgroup: self._known[cgroup] for cgroup in known[READ_AGAIN:]}
            names = ContainerNames(self._fs)
            for cgroup in there:
                if cgroup not in kept:
                    kept[cgroup] = Container(cgroup, names.label(cgroup), names.labels(cgroup))
            self._known = kept
            self._containers = tuple(kept[cgroup] for cgroup in there)
        return self._containers

    def _walk(self, descend: Callable[[str], bool]) -> Iterator[str]:
        """Groups from the top, into those with such names."""
        waiting, count = [""], 0
        while waiting:
            parent = waiting.pop()
            for name in self.children(parent or "/"):
                count += 1
                if count > MAX_GROUPS:
                    return
                yield f"{parent}/{name}"
                if descend(name):
                    waiting.append(f"{parent}/{name}")

    def of_process(self, pid: int) -> str:
        """The group that this process is in; empty if there is no such process, or it is in the root."""
        tree = primary(self._hierarchies)
        try:
            lines = read_text(self._fs, f"/proc/{pid}/cgroup").splitlines()
        except KernelError:
            return ""
        found = ""
        for line in lines:
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if tree is not None and (
                number == "0" if tree.version == 2 else bool(tree.controllers & set(controllers.split(",")))
            ):
                found = path
        return "" if found in ("", "/") or "/.." in found else found

    def start_of(self, pid: int) -> int:
        """When this process began, in the kernel's ticks since boot; 0: there is none. Tells it from its successors."""
        try:
            return int(read_text(self._fs, f"/proc/{pid}/stat").rpartition(")")[2].split()[_CLK_START])
        except (KernelError, ValueError, IndexError):
            return 0

    def pid_in(self, path: str) -> tuple[int, str]:
        """(the number in a pid file, ""); (0, why it is not taken, if it is there).

        Whoever may write the file says which workload this is. So only root is believed about every process, and
        others about processes that are theirs alone.
        """
        if not isinstance(self._fs, ReadsStrangers):
            return 0, f"pid files cannot be read on this host: {path}"
        try:
            owner, data = self._fs.read_strangers(path, _PID_FILE_BYTES)
        except ParseError:
            return 0, f"{path} is no plain file (but a symbolic link, a FIFO, a device ...): it is not read"
        except KernelError:
            return 0, ""
        word = data.split(maxsplit=1)[:1]
        pid = int(word[0]) if word and word[0].isdigit() and len(word[0]) <= _PID_DIGITS else 0
        if pid <= 1 or owner == 0:
            return pid, ""
        users = self._users_of(pid)
        if users and users != {owner}:
            shown = ", ".join(map(str, sorted(users)))
            return 0, (
                f"{path} belongs to user {owner} and names process {pid}, which runs as user {shown}: only root may "
                "name another user's process; let root write the file"
            )
        return (pid, "") if users else (0, "")

    def _users_of(self, pid: int) -> set[int]:
        """Real, effective and saved uid of a process; empty if there is none."""
        try:
            for line in read_text(self._fs, f"/proc/{pid}/status").splitlines():
                if line.startswith("Uid:"):
                    return {int(uid) for uid in line.split()[1:4]}
        except (KernelError, ValueError):
            pass
        return set()


def _may_hold_containers(name: str) -> bool:
    return name.endswith(".slice") or name in _FOLDERS or _POD.fullmatch(name) is not None
