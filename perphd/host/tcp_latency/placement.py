"""At which control group, and with which ports, a workload's connections can be seen.

A socket belongs to the group in which it was made, and an accepted one to its listener's, whoever moves where later. So
a workload's own group sees its connections only if its listener was made there. It was not where systemd listens for it
(socket activation: the group of the .socket unit), or where the server was moved after it began to listen. Then the
programs are attached to the listener's group, and look at the listener's ports alone.

systemd before version 252 attaches its own IP filters (IPAddressDeny=) exclusively to services and scopes: a
program that is there first would keep a later filter from coming into force. Beside those perphd attaches at
the slice above, where systemd shares, with the ports.
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
from perphd.host.sock_diag import Listener, tcp_listeners
from perphd.host.systemd import RUNNING

SHARING_SYSTEMD: Final = 252
"""The first version that was seen to attach its filters beside others'."""
_LIBRARIES: Final = ("/usr/lib", "/lib", "/usr/lib64")
_LIBRARY = re.compile(r"libsystemd-(?:shared|core)-(\d{3,4})\b")
_MOST_GROUPS: Final = 20_000
_MOST_PROCESSES: Final = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where to attach. ``inode``: identity of the directory; ``ports``: empty for all; ``why``: if it is not
    the group.
    """

    directory: str
    inode: int
    ports: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one workload and the host.

    ``directory``: of the group in cgroup v2, "" if it has none of its own there; ``mount``: of cgroup v2;
    ``own_ids``: cgroup ids of the group and all below it; ``socket_unit_id``: that of the group of its .socket
    unit, 0 without; ``held``: inodes of sockets that its processes hold, as far as they may be asked;
    ``systemd``: the manager's version, None where systemd manages nothing or shares.
    """

    directory: str
    inode: int
    mount: str
    own_ids: frozenset[int]
    socket_unit_id: int
    held: frozenset[int]
    listeners: tuple[Listener, ...]
    systemd: int | None


Placement = Place | str
"""Where, or why nowhere."""


def decide(facts: Facts, ports: Sequence[int], directory_of: Callable[[int], str]) -> Placement:
    """Choose the place. ``ports``: as configured; ``directory_of``: cgroup id -> directory, "" if there is none."""
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
        # A group that was removed while its sockets live, or several of them: at the top all are seen.
        place = directory or facts.mount
        why = f"port {_listed(seen)}: the listening socket belongs to {_shown(place, facts.mount)}"
        return _beside_systemd(facts, Place(place, 0, seen, why))
    if not facts.directory:
        return "its processes are in the root group of cgroup v2, and no port is known: name it (ports in [lra.sli])"
    seen = tuple(ports) or (tuple(sorted({one.port for one in own})) if facts.systemd is not None else ())
    return _beside_systemd(facts, Place(facts.directory, facts.inode, seen))


def _beside_systemd(facts: Facts, place: Place) -> Placement:
    if facts.systemd is None or not _is_filtered_unit(place.directory):
        return place
    version = f"systemd {facts.systemd} attaches its IP filters exclusively to services (252 does not)"
    if not place.ports:
        return f"{version}, and no port is known to look for in the slice above: name it (ports in [lra.sli])"
    above = PurePosixPath(place.directory)
    while _is_filtered_unit(str(above)):
        above = above.parent
    return Place(str(above), 0, place.ports, f"{version}: measured at {_shown(str(above), facts.mount)}")


def _is_filtered_unit(directory: str) -> bool:
    """True in and below a service, scope or socket unit."""
    return any(part.endswith((".service", ".scope", ".socket")) for part in PurePosixPath(directory).parts)


def _shown(directory: str, mount: str) -> str:
    return directory.removeprefix(mount) or "the root group"


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(map(str, ports))


def find_place(hierarchies: Hierarchies, cgroup: str, ports: Sequence[int]) -> Placement:
    """Look at the running host. ``cgroup``: the workload's path.

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
    if not own:  # on a hybrid host a group may be v1's alone
        directory = mount + _unified_path(_processes(paths)).rstrip("/")
        own = _ids_below(directory) if directory != mount else {}
    listeners = tcp_listeners()
    is_seen = any(one.cgroup_id in own for one in listeners)
    facts = Facts(
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
    """Id -> directory of a group and all below it, parents first; empty: it is not there."""
    found: dict[int, str] = {}
    for path, names, _ in os.walk(directory):
        if len(found) >= _MOST_GROUPS:
            names.clear()
        if (number := _id_of(path)) != 0:
            found[number] = path
    return found


def _directory_of(mount: str, wanted: int) -> str:
    return _ids_below(mount).get(wanted, "")


def _held_sockets(pids: Iterable[str]) -> frozenset[int]:
    """Inodes of the sockets that these processes hold. Others' processes answer only to CAP_SYS_PTRACE."""
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
    """The oldest of these groups' processes: whoever listens is among them, rather than its children."""
    found: set[str] = set()
    for directory in directories:
        with suppress(OSError), open(f"{directory}/cgroup.procs", encoding="ascii") as file:
            found.update(file.read().split())
    return sorted(found, key=int)[:_MOST_PROCESSES]


def _unified_path(pids: Iterable[str]) -> str:
    """The group of cgroup v2 that all of these processes are in; "/" if there is none but the root."""
    found: set[str] = set()
    for pid in pids:
        with (
            suppress(OSError),
            open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file,
        ):
            found.update(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
    return found.pop() if len(found) == 1 else "/"


def _unsharing_systemd() -> int | None:
    """The version of a systemd that attaches its filters exclusively; None where there is none."""
    if not os.path.isdir(RUNNING):
        return None
    version = systemd_version()
    return version if version is not None and version < SHARING_SYSTEMD else None


def systemd_version(libraries: Sequence[str] = _LIBRARIES) -> int | None:
    """The installed systemd's version, by the name of its private library; None if that is not found.

    Asking systemctl would take a process, and D-Bus a connection; the manager itself cannot be asked by its
    file system.
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
