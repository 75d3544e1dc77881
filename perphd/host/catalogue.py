"""Lists existing control groups, for completion and "did you mean". Not for the hot path.

v1 trees are read with cgroupspy, which expects one tree per controller and walks it completely: 140 ms for
600 groups. It opens paths itself and is used only if the injected file system is the running kernel's.
Captured and simulated hosts and v2 trees are walked directly, and so is a v1 tree that changed while
cgroupspy read it, since cgroupspy then fails.
"""

from __future__ import annotations

import difflib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cgroupspy.trees import Tree

from perphd.domain.errors import KernelError
from perphd.host.cgroup.hierarchy import Hierarchies, Hierarchy
from perphd.host.containers import ContainerNames
from perphd.host.fs import KernelFs, RealFs, read_text

MAX_SUGGESTIONS: Final = 3
_SIMILAR: Final = 0.6


@dataclass(frozen=True, slots=True)
class CgroupEntry:
    """One control group, merged over all hierarchies.

    ``populated``: the group or a descendant contains a process. ``processes``: number of processes in the
    group itself. ``label``: name of its pod or container; empty for other groups.
    """

    path: str
    populated: bool
    processes: int
    label: str = ""


def list_cgroups(fs: KernelFs, hierarchies: Hierarchies, limit: int) -> tuple[CgroupEntry, ...]:
    """All groups except the root, sorted by path; if more than ``limit``, only the shallowest.

    Groups that vanish meanwhile are left out. On a host without hierarchies, the result is empty.
    """
    members: dict[str, set[str]] = {}
    for hierarchy in hierarchies.all():
        for path in _paths(fs, hierarchy):
            members.setdefault(path, set()).update(_pids(fs, hierarchy, path))
    busy = {ancestor for path, pids in members.items() if pids for ancestor in _upwards(path)}
    kept = sorted(members, key=lambda path: (path.count("/"), path))[:limit]
    names = ContainerNames(fs)
    return tuple(
        CgroupEntry(path, path in busy, len(members[path]), names.label(path)) for path in sorted(kept)
    )


def suggest(path: str, entries: Iterable[CgroupEntry]) -> tuple[str, ...]:
    """Existing groups probably meant by ``path``, best first; at most three.

    Groups of the same last name elsewhere come first, then pods and containers of that name, then similar
    spellings.
    """
    entries = tuple(entries)
    known = [entry.path for entry in entries]
    name = path.rstrip("/").rsplit("/", 1)[-1]
    by_name = {candidate: candidate.rsplit("/", 1)[-1] for candidate in known}
    same = [candidate for candidate in known if name and by_name[candidate] == name]
    labelled = [entry.path for entry in entries if name and name in entry.label.split("/")]
    names = set(difflib.get_close_matches(name, set(by_name.values()), MAX_SUGGESTIONS, _SIMILAR))
    alike = [
        *difflib.get_close_matches(path, known, MAX_SUGGESTIONS, _SIMILAR),
        *(candidate for candidate in known if by_name[candidate] in names),
    ]
    return tuple(dict.fromkeys([*same, *labelled, *alike]))[:MAX_SUGGESTIONS]


def _paths(fs: KernelFs, hierarchy: Hierarchy) -> Sequence[str]:
    if hierarchy.version == 1 and _is_running_kernel(fs, hierarchy.mount):
        try:
            return list(_by_cgroupspy(hierarchy.mount))
        except OSError:  # a group was removed during the walk
            pass
    return list(_by_walking(fs, hierarchy.mount))


def _is_running_kernel(fs: KernelFs, mount: str) -> bool:
    """True if ``fs`` shows the same directory that cgroupspy would open."""
    if not isinstance(fs, RealFs):
        return False
    try:
        status = os.stat(mount)
        return fs.identity(mount) == (status.st_dev, status.st_ino)
    except (OSError, KernelError):
        return False


def _by_cgroupspy(mount: str) -> Iterator[str]:
    parent, _, controller = mount.rpartition("/")
    top = f"/{controller}/".encode()
    for node in Tree(root_path=parent or "/", groups=[controller]).walk():
        if node.path.startswith(top):
            yield "/" + os.fsdecode(node.path[len(top) :])


def _by_walking(fs: KernelFs, mount: str) -> Iterator[str]:
    waiting = deque([""])
    while waiting:
        parent = waiting.popleft()
        try:
            names = fs.listdir(f"{mount}{parent}")
        except KernelError:
            continue
        for name in names:
            path = f"{parent}/{name}"
            if fs.exists(f"{mount}{path}/cgroup.procs"):  # kernel files contain dots and are not directories
                yield path
                waiting.append(path)


def _pids(fs: KernelFs, hierarchy: Hierarchy, path: str) -> list[str]:
    try:
        return read_text(fs, hierarchy.path(path, "cgroup.procs")).split()
    except KernelError:  # removed, or a threaded v2 group, whose processes belong to an ancestor
        return []


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
