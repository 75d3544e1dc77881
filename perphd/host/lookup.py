"""Searches for control groups by unit, container or process. Reads files only and asks no daemon.

No search walks the whole tree: units of this host's systemd lie only in slices, and containers in slices or
in their runtimes' folders.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from posixpath import dirname
from typing import Final, TypeVar

from perphd.domain.errors import KernelError, ParseError
from perphd.host import yarn
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy, Layout
from perphd.host.containers import KUBEPODS, UNKNOWN_POD, ContainerNames, is_sandbox, parse_path
from perphd.host.fs import KernelFs, ReadsStrangers, read_text
from perphd.host.process_stat import start_ticks
from perphd.host.systemd_fs import unit_of

MAX_GROUPS: Final = 20_000
"""Maximum number of directories visited in one walk, in case a tree is unbounded."""
MOST_SEARCHED: Final = 1000
"""Maximum number of other programs' folders that are searched for kubelet's tree."""
READ_AGAIN: Final = 16
"""Number of known containers whose runtime files each call of ``containers`` reads again."""
_FOLDERS: Final = frozenset(
    {"docker", "libpod_parent", "default", KUBEPODS, "burstable", "besteffort", "guaranteed"}
)
_POD = re.compile(r"(?:.*-)?pod[0-9a-f_-]{32,36}(?:\.slice)?", re.ASCII)

_UNIT = re.compile(r"\.(?:slice|service|scope|mount|swap|socket)$", re.ASCII)

_PID_FILE_BYTES: Final = 64
_PID_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Container:
    """One container's group. ``labels`` None: they cannot be read. ``pod``: the group of its pod, if it has one."""

    cgroup: str
    name: str
    labels: Mapping[str, str] | None
    pod: str = ""
    is_sandbox: bool = False

    @property
    def identity(self) -> str:
        """An identity that stays the same while the container exists under its name."""
        return _identity(self.name, self.cgroup)


@dataclass(frozen=True, slots=True)
class LocalPod:
    """One pod's group, which contains those of its containers. ``labels`` None: they cannot be read."""

    cgroup: str
    name: str
    labels: Mapping[str, str] | None

    @property
    def identity(self) -> str:
        """An identity that stays the same while the pod exists under its name."""
        return _identity(self.name, self.cgroup)


_Named = TypeVar("_Named", Container, LocalPod)


def primary(hierarchies: Hierarchies) -> Hierarchy | None:
    """The hierarchy that is searched: the one that divides CPU time."""
    if hierarchies.layout is Layout.V2:
        return hierarchies.unified
    return hierarchies.of("cpu") or next(iter(hierarchies.all()), None)


def _searched(hierarchies: Hierarchies) -> tuple[Hierarchy, ...]:
    """The primary hierarchy, and on a hybrid host the one in which systemd has all its units.

    In the hierarchy of a v1 controller a unit has no group before a setting of it needs that controller.
    """
    first = primary(hierarchies)
    both = (first, hierarchies.unified) if hierarchies.layout is Layout.HYBRID else (first,)
    return tuple(dict.fromkeys(each for each in both if each is not None))


class Lookup:
    """Searches one host. Between two calls of ``look_anew``, walks the tree at most once for each kind of group.

    Container names and labels are kept and re-read for a few containers per call, since a container may be
    renamed and a runtime may write late.
    """

    def __init__(self, fs: KernelFs, hierarchies: Hierarchies) -> None:
        self._fs, self._hierarchies = fs, hierarchies
        self._units: tuple[tuple[str, str], ...] | None = None
        self._containers: tuple[Container, ...] | None = None
        self._pods: tuple[LocalPod, ...] = ()
        self._known: dict[str, Container] = {}

    def look_anew(self) -> None:
        """Discard cached results."""
        self._units = self._containers = None

    def children(self, cgroup: str) -> list[str]:
        """Names of a group's children; none if it is gone."""
        names: dict[str, None] = {}
        for tree in _searched(self._hierarchies):
            with suppress(KernelError):
                names |= dict.fromkeys(self._fs.subdirectories(tree.path(cgroup)))
        return list(names)

    def exists(self, cgroup: str) -> bool:
        """True if the group exists."""
        return bool(self._hierarchies.directories(self._fs, cgroup))

    def units(self) -> Sequence[tuple[str, str]]:
        """(unit, its group) for all units in slices; a slice precedes its contents."""
        if self._units is None:
            groups = self._walk(lambda name: name.endswith(".slice"))
            self._units = tuple((unit, cgroup) for cgroup in groups if (unit := unit_of(cgroup)))
        return self._units

    def containers(self) -> Sequence[Container]:
        """Every container's group, with name and labels; without groups left by an earlier container of that name."""
        if self._containers is None:
            names = ContainerNames(self._fs)
            hierarchy = names.yarn_hierarchy()
            walked = dict.fromkeys(
                (*self._walk(_may_hold_containers, anywhere=True), *self._yarn_containers(hierarchy))
            )
            there = [cgroup for cgroup in walked if self._is_container(cgroup)]
            pods = [cgroup for cgroup in walked if _is_pod(cgroup)]
            present = set(there)
            # In reading order, the least recently read first.
            known = [cgroup for cgroup in self._known if cgroup in present]
            kept = {cgroup: self._known[cgroup] for cgroup in known[READ_AGAIN:]}
            for cgroup in there:
                if cgroup not in kept:
                    kept[cgroup] = _container(names, cgroup)
            self._known = kept
            everybody = [kept[cgroup] for cgroup in there]
            found = _pods(names, pods, everybody)
            self._pods = self._holders(found)
            left = {pod.cgroup for pod in found} - {pod.cgroup for pod in self._pods}
            self._containers = self._holders([each for each in everybody if each.pod not in left])
        return self._containers

    def pods(self) -> Sequence[LocalPod]:
        """Every pod's group, with the pod's name, labels and annotations; without groups left by an earlier pod of the
        same name.
        """
        self.containers()
        return self._pods

    def _holders(self, groups: Sequence[_Named]) -> tuple[_Named, ...]:
        """One group for each identity. Among several groups with one name in Kubernetes, that of the present holder
        counts.

        The group of a deleted pod can outlive it: kubelet removes groups later than pods, and a pod that was deleted by
        force keeps running. Groups with processes precede empty ones, then the newest wins: the kernel numbers the
        directories of control groups in the order of their creation.
        """
        by_identity: dict[str, list[_Named]] = {}
        for each in groups:
            by_identity.setdefault(each.identity, []).append(each)
        present = {
            (same[0] if len(same) == 1 else max(same, key=lambda one: self._holds(one.cgroup))).cgroup
            for same in by_identity.values()
        }
        return tuple(each for each in groups if each.cgroup in present)

    def _holds(self, cgroup: str) -> tuple[bool, int]:
        """(has processes, inode): greater for the group that holds a name now."""
        tree = primary(self._hierarchies)
        try:
            inode = 0 if tree is None else self._fs.identity(tree.path(cgroup))[1]
        except KernelError:
            return False, 0
        return self._is_populated(cgroup), inode

    def _is_populated(self, cgroup: str) -> bool:
        """True if this group or one within it has processes."""
        waiting, count = [cgroup], 0
        while waiting and count < MAX_GROUPS:
            count += 1
            group = waiting.pop()
            if self._has_own_processes(group):
                return True
            waiting += (f"{group}/{name}" for name in self.children(group))
        return False

    def _yarn_containers(self, hierarchy: str) -> Iterator[str]:
        return (f"{hierarchy}/{name}" for name in self.children(hierarchy) if yarn.is_container(name))

    def _is_container(self, cgroup: str) -> bool:
        """True for a container's group. YARN's empty groups do not count: YARN leaves those of ended containers."""
        path = parse_path(cgroup)
        return bool(path.container_id) and (path.runtime != yarn.RUNTIME or self._has_processes(cgroup))

    def _has_processes(self, cgroup: str) -> bool:
        return self._has_own_processes(cgroup) or bool(self.children(cgroup))

    def _has_own_processes(self, cgroup: str) -> bool:
        tree = primary(self._hierarchies)
        try:
            return tree is not None and bool(read_text(self._fs, tree.path(cgroup, "cgroup.procs")).strip())
        except KernelError:
            return False

    def _walk(self, descend: Callable[[str], bool], *, anywhere: bool = False) -> Iterator[str]:
        """Groups from the top, descending into those whose names ``descend`` accepts.

        ``anywhere``: also descend to kubelet's tree below a ``cgroupRoot`` of any depth (cgroupfs driver).
        Only folders that are neither a unit nor a container are searched for it, from the top and after
        everything else: a program may have any number of them. Nothing else is found in them.
        """
        waiting, searched, count, looks = [""], deque[str](), 0, 0
        while waiting or (searched and looks < MOST_SEARCHED):
            is_searched = not waiting
            looks += is_searched
            parent = searched.popleft() if is_searched else waiting.pop()
            for name in self.children(parent or "/"):
                group = f"{parent}/{name}"
                if not is_searched:
                    count += 1
                    if count > MAX_GROUPS:
                        return
                    yield group
                if (anywhere and name == KUBEPODS) or (not is_searched and descend(name)):
                    waiting.append(group)
                elif anywhere and len(searched) < MOST_SEARCHED and _may_be_cgroup_root(name):
                    searched.append(group)

    def of_process(self, pid: int) -> str:
        """The group of this process; empty for the root group, or if there is no such process.

        On a hybrid host, the group of its unit if that lies deeper than its group in the primary hierarchy.
        """
        tree = primary(self._hierarchies)
        try:
            lines = read_text(self._fs, f"/proc/{pid}/cgroup").splitlines()
        except KernelError:
            return ""
        found = unified = ""
        for line in lines:
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if path == "/" or "/.." in path:
                continue
            if number == "0":
                unified = path
            if tree is not None and (
                number == "0" if tree.version == 2 else bool(tree.controllers & set(controllers.split(",")))
            ):
                found = path
        is_hybrid = self._hierarchies.layout is Layout.HYBRID
        return unified if is_hybrid and unified.startswith(f"{found}/") and unit_of(unified) else found

    def start_of(self, pid: int) -> int:
        """Start time of this process in clock ticks since boot; 0: no such process.

        It identifies a process together with the process id, since ids are reused.
        """
        return start_ticks(self._fs, pid) or 0

    def pid_in(self, path: str) -> tuple[int, str]:
        """Read a pid file: (process id, ""), or (0, reason for its rejection).

        The reason is empty if the file does not exist. Anybody who can write the file chooses the workload. A file of
        root is therefore trusted for any process, and another file only for processes of its owner.
        """
        if not isinstance(self._fs, ReadsStrangers):
            return 0, f"pid files cannot be read on this host: {path}"
        try:
            owner, data = self._fs.read_strangers(path, _PID_FILE_BYTES)
        except ParseError:
            return 0, f"{path} is not a regular file (a symbolic link, a FIFO, a device ...): it is not read"
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
        """Real, effective and saved uid of a process; empty if there is no such process."""
        try:
            for line in read_text(self._fs, f"/proc/{pid}/status").splitlines():
                if line.startswith("Uid:"):
                    return {int(uid) for uid in line.split()[1:4]}
        except (KernelError, ValueError):
            pass
        return set()


def _is_pod(cgroup: str) -> bool:
    path = parse_path(cgroup)
    return bool(path.pod_uid) and not path.container_id


def _identity(name: str, cgroup: str) -> str:
    """The name if it is one in Kubernetes, which one group at a time holds; else the group's path."""
    return name if "/" in name and not name.startswith(UNKNOWN_POD) else cgroup


def _container(names: ContainerNames, cgroup: str) -> Container:
    labels = names.labels(cgroup)
    pod = dirname(cgroup) if parse_path(dirname(cgroup)).pod_uid else ""
    return Container(cgroup, names.label(cgroup), labels, pod, is_sandbox(labels or {}))


def _pods(
    names: ContainerNames, groups: Sequence[str], containers: Sequence[Container]
) -> tuple[LocalPod, ...]:
    inside: dict[str, list[Container]] = {}
    for each in containers:
        inside.setdefault(each.pod, []).append(each)
    found = []
    for cgroup in groups:
        members = inside.get(cgroup, [])
        # A sandbox has the pod's labels and annotations; other containers have labels of their own as well.
        chosen = [each.labels for each in members if each.is_sandbox] or [each.labels for each in members]
        labels = names.pod_labels(cgroup, chosen)
        found.append(LocalPod(cgroup, names.pod(cgroup, labels or {}), labels))
    return tuple(found)


def _may_hold_containers(name: str) -> bool:
    return name.endswith(".slice") or name in _FOLDERS or _POD.fullmatch(name) is not None


def _may_be_cgroup_root(name: str) -> bool:
    """True for the names that kubelet accepts in ``cgroupRoot`` and that no unit, container or LXC tree has."""
    is_container = bool(parse_path(f"/docker/{name}").container_id)
    return not (is_container or _UNIT.search(name) or name.startswith("lxc"))
