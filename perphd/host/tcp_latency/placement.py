"""Chooses the control group and ports at which a workload's connections can be observed.

A socket belongs to the group in which it was created, and an accepted one to its listener's group, even if
processes move later. A workload's own group therefore sees its connections only if its listener was created
there. It does not see them if systemd listens for it (socket activation: the group of the .socket unit), or if the
server was moved after it began to listen. The programs are then attached to the listener's group, restricted
to the listener's ports.

systemd before version 252 attaches its own IP filters (IPAddressDeny=) exclusively to services and scopes: an
earlier program there would prevent a later filter. With those versions perphd attaches at the slice above,
where systemd allows other programs, restricted by ports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from perphd.host.cgroup.hierarchy import Hierarchies
from perphd.host.sock_diag import ListeningSocket, tcp_listeners
from perphd.host.systemd import RUNNING

SHARING_SYSTEMD: Final = 252
"""First systemd version known to attach its filters non-exclusively."""
_LIBRARIES: Final = ("/usr/lib", "/lib", "/usr/lib64")
_LIBRARY = re.compile(r"libsystemd-(?:shared|core)-(\d{3,4})\b")
_MOST_GROUPS: Final = 20_000
_MOST_PROCESSES: Final = 64


@dataclass(frozen=True, slots=True)
class HookPlace:
    """Place to attach the programs.

    ``inode``: identity of the directory. ``ports``: the only ports that count; empty: all ports. ``why``: why the
    place is not the workload's own group; empty if it is.
    """

    directory: str
    inode: int
    ports: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class HookFacts:
    """Facts about one workload and the host.

    - ``directory``: the group's directory in cgroup v2, empty if it has none there; ``mount``: where cgroup v2 is
      mounted.
    - ``own_ids``: cgroup ids of the group and its descendants.
    - ``socket_unit_id``: cgroup id of its .socket unit's group; 0 if it has no such unit.
    - ``held``: inodes of sockets held by its processes, as far as readable.
    - ``systemd``: the manager's version; None if there is no systemd, or its filters are not exclusive.
    """

    directory: str
    inode: int
    mount: str
    own_ids: frozenset[int]
    socket_unit_id: int
    held: frozenset[int]
    listeners: tuple[ListeningSocket, ...]
    systemd: int | None


Placement = HookPlace | str
"""The place to attach the programs, or the reason why there is none."""


def decide(facts: HookFacts, ports: Sequence[int], directory_of: Callable[[int], str]) -> Placement:
    """Choose the place.

    ``ports``: as configured. ``directory_of``: cgroup id -> directory, empty if there is none.
    """
    own = [one for one in facts.listeners if one.cgroup_id in facts.own_ids]
    if ports:
        foreign = [one for one in facts.listeners if one.port in ports]
        own = [one for one in own if one.port in ports]
    else:
        foreign = [
            one for one in facts.listeners if one.cgroup_id == facts.socket_unit_id or one.inode in facts.held
        ]
    foreign = [one for one in foreign if one.cgroup_id and one.cgroup_id not in facts.own_ids]
    if not own and foreign:
        elsewhere = sorted({one.cgroup_id for one in foreign})
        seen = tuple(sorted({one.port for one in foreign}))
        directory = directory_of(elsewhere[0]) if len(elsewhere) == 1 else ""
        # The listener's group was removed, or there are several: all connections are visible at the top.
        place = directory or facts.mount
        why = f"port {_listed(seen)}: the listening socket belongs to {_shown(place, facts.mount)}"
        return _beside_systemd(facts, HookPlace(place, 0, seen, why))
    if not facts.directory:
        return "its processes are in the root group of cgroup v2, and no port is known: name it (ports in [lra.sli])"
    seen = tuple(ports) or (tuple(sorted({one.port for one in own})) if facts.systemd is not None else ())
    return _beside_systemd(facts, HookPlace(facts.directory, facts.inode, seen))


def _beside_systemd(facts: HookFacts, place: HookPlace) -> Placement:
    if facts.systemd is None or not _is_filtered_unit(place.directory):
        return place
    version = f"systemd {facts.systemd} attaches its IP filters exclusively to services (252 does not)"
    if not place.ports:
        return f"{version}, and no port is known to select in the slice above: name it (ports in [lra.sli])"
    above = PurePosixPath(place.directory)
    while _is_filtered_unit(str(above)):
        above = above.parent
    return HookPlace(str(above), 0, place.ports, f"{version}: measured at {_shown(str(above), facts.mount)}")


def _is_filtered_unit(directory: str) -> bool:
    """True inside a service, scope or socket unit."""
    return any(part.endswith((".service", ".scope", ".socket")) for part in PurePosixPath(directory).parts)


def _shown(directory: str, mount: str) -> str:
    return directory.removeprefix(mount) or "the root group"


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(map(str, ports))


def find_place(hierarchies: Hierarchies, cgroup: str, ports: Sequence[int]) -> Placement:
    """Find the place on the running host. ``cgroup``: the workload's path.

    Raises:
        KernelError: the listening sockets cannot be listed.
    """
    if hierarchies.unified is None:
        return (
            "no cgroup v2 hierarchy is mounted (mount -t cgroup2 none DIRECTORY; controllers are not needed)"
        )
    mount = hierarchies.unified.mount
    paths = [tree.path(cgroup) for tree in hierarchies.all()]
    if not any(map(os.path.isdir, paths)):
        return f"waiting for cgroup {cgroup}"
    directory = hierarchies.unified.path(cgroup)
    own = _ids_below(directory)
    if not own:  # on a hybrid host a group may exist only in v1
        directory = mount + _unified_path(_processes(paths)).rstrip("/")
        own = _ids_below(directory) if directory != mount else {}
    listeners = tcp_listeners()
    is_seen = any(one.cgroup_id in own for one in listeners)
    facts = HookFacts(
        directory=directory if own else "",
        inode=_id_of(directory) if own else 0,
        mount=mount,
        own_ids=frozenset(own),
        socket_unit_id=_id_of(f"{directory.removesuffix('.service')}.socket")
        if cgroup.endswith(".service")
        else 0,
        held=frozenset() if is_seen else _held_sockets(_processes((*paths, *own.values()))),
        listeners=listeners,
        systemd=_unsharing_systemd(),
    )
    return decide(facts, ports, lambda wanted: _directory_of(mount, wanted))


def _id_of(directory: str) -> int:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return 0


def _ids_below(directory: str) -> dict[int, str]:
    """Cgroup id -> directory of a group and its descendants, parents first; empty if it does not exist.

    Users of a delegated group may nest groups deeper than Python's limit on recursion.
    """
    found: dict[int, str] = {}
    waiting = [directory]
    while waiting and len(found) < _MOST_GROUPS:
        path = waiting.pop()
        if (number := _id_of(path)) != 0:
            found[number] = path
        with suppress(OSError), os.scandir(path) as entries:
            waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def _directory_of(mount: str, wanted: int) -> str:
    return _ids_below(mount).get(wanted, "")


def _held_sockets(pids: Iterable[str]) -> frozenset[int]:
    """Inodes of sockets that these processes hold. Other users' processes are readable only with CAP_SYS_PTRACE."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return frozenset(found)


def _processes(directories: Iterable[str]) -> list[str]:
    """The oldest processes of these groups, because a listener is more likely among them than among its children."""
    found: set[str] = set()
    for directory in directories:
        with suppress(OSError), open(f"{directory}/cgroup.procs", encoding="ascii") as file:
            found.update(file.read().split())
    return sorted(found, key=int)[:_MOST_PROCESSES]


def _unified_path(pids: Iterable[str]) -> str:
    """The cgroup v2 group that contains all of these processes; "/" if they are in different groups."""
    found: set[str] = set()
    for pid in pids:
        with (
            suppress(OSError),
            open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file,
        ):
            found.update(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
    return found.pop() if len(found) == 1 else "/"


def _unsharing_systemd() -> int | None:
    """The version of a systemd that attaches its filters exclusively; None if there is none."""
    if not os.path.isdir(RUNNING):
        return None
    version = systemd_version()
    return version if version is not None and version < SHARING_SYSTEMD else None


def systemd_version(libraries: Sequence[str] = _LIBRARIES) -> int | None:
    """The installed systemd's version, from the name of its private library; None if not found.

    systemctl would cost a process and D-Bus a connection, and the manager publishes its version in no file.
    """
    for top in libraries:
        for folder in (f"{top}/systemd", *_subfolders(top)):
            with suppress(OSError):
                for name in sorted(os.listdir(folder), reverse=True):
                    if found := _LIBRARY.match(name):
                        return int(found[1])
    return None


def _subfolders(top: str) -> list[str]:
    """Debian's folders by architecture."""
    try:
        return [f"{top}/{name}/systemd" for name in sorted(os.listdir(top)) if "-linux-" in name]
    except OSError:
        return []
