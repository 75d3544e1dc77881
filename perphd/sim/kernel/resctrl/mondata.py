"""``mon_data`` of a group: one directory per cache and, under Sub-NUMA Clustering, one more for each of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perphd.sim.kernel.resctrl.groups import Group
from perphd.sim.kernel.resctrl.hardware import Domain
from perphd.sim.kernel.resctrl.monitor import Monitor
from perphd.sim.kernel.vfs import Directory

if TYPE_CHECKING:
    from perphd.sim.kernel.resctrl.tree import ResctrlTree


def fill_mon_data(tree: ResctrlTree, monitor: Monitor, group: Group, place: Directory) -> None:
    """Add the domains that came online, and remove those that went offline."""
    wanted = {f"mon_L3_{domain.id:02d}": domain for domain in monitor.domains()}
    for name in [name for name in place.children if name not in wanted]:
        place.remove(name)
    for name, domain in wanted.items():
        if name in place.children:
            continue
        here = _directory(place, name)
        _events(tree, monitor, group, domain, here, name)
        for node in domain.nodes:
            inner = f"mon_sub_L3_{node:02d}"
            _events(tree, monitor, group, domain, _directory(here, inner), f"{name}/{inner}", node)


def _events(
    tree: ResctrlTree,
    monitor: Monitor,
    group: Group,
    domain: Domain,
    place: Directory,
    name: str,
    node: int | None = None,
) -> None:
    def where() -> str:
        return f"{group.path}/mon_data/{name}"

    for event in monitor.machine.events:
        tree.add_file(
            place,
            where,
            event,
            lambda event=event: monitor.read(group, domain, event, node),  # type: ignore[misc]
        )


def _directory(parent: Directory, name: str) -> Directory:
    place = Directory(strict_open=True)
    place.mode = parent.mode
    parent.children[name] = place
    return place
