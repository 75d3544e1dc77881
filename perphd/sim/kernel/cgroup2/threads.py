"""Types of groups: which may contain processes, and which individual threads.

Source: Documentation/admin-guide/cgroup-v2.rst, "Threads" and "No Internal Process Constraint".
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from perphd.sim.kernel.cgroup2.rules import THREADED
from perphd.sim.kernel.vfs import refuse

if TYPE_CHECKING:
    from perphd.sim.kernel.cgroup2.group import SimCgroup


def type_of(group: SimCgroup) -> str:
    """The content of cgroup.type."""
    if group.threaded:
        return "threaded"
    if not is_valid_domain(group):
        return "domain invalid"
    return "domain threaded" if is_thread_root(group) else "domain"


def domain_of(group: SimCgroup) -> SimCgroup:
    """The group that represents this one's processes: itself, or the root of its threaded subtree."""
    while group.threaded and group.parent is not None:
        group = group.parent
    return group


def is_thread_root(group: SimCgroup) -> bool:
    """True if threads of its processes are, or could be, in groups below."""
    if group.threaded or group.parent is None:
        return False
    if any(child.threaded for child in group.children.values()):
        return True
    return bool(group.processes) and bool(group.subtree_control & THREADED)


def can_be_thread_root(group: SimCgroup) -> bool:
    """True for a domain that enables no domain controller for its children, none of which is a populated domain."""
    if group.parent is None:
        return True
    if group.threaded or group.subtree_control - THREADED:
        return False
    return not any(not child.threaded and child.populated() for child in group.children.values())


def is_valid_domain(group: SimCgroup) -> bool:
    """True if the group may contain processes: no ancestor is the root of a threaded subtree."""
    if group.threaded:
        return False
    return not any(
        above.threaded or is_thread_root(above) for above in group.ancestry() if above is not group
    )


def make_threaded(group: SimCgroup) -> None:
    """Join the parent's threaded subtree; OSError EOPNOTSUPP if impossible."""
    if group.threaded:
        return
    assert group.parent is not None
    domain = domain_of(group.parent)
    fits = is_valid_domain(domain) and can_be_thread_root(domain)
    if group.populated() or group.subtree_control - THREADED or not fits:
        raise refuse(errno.EOPNOTSUPP)
    group.threaded = True


def check_move_into(group: SimCgroup) -> None:
    """Check whether tasks may be moved here.

    OSError: EOPNOTSUPP if the group's domain is invalid, EBUSY if the group enables controllers for its
    children.
    """
    if not is_valid_domain(domain_of(group)):
        raise refuse(errno.EOPNOTSUPP)
    if group.threaded or can_be_thread_root(group):
        return
    if group.subtree_control:
        raise refuse(errno.EBUSY)


def check_enable(group: SimCgroup, controllers: set[str]) -> None:
    """Check whether these controllers may be enabled for the children.

    OSError: EOPNOTSUPP if the domain is invalid, or for a domain controller in a threaded subtree; EBUSY if
    the group has processes.
    """
    if not controllers or group.parent is None:
        return
    if not is_valid_domain(domain_of(group)):
        raise refuse(errno.EOPNOTSUPP)
    if controllers - THREADED:
        if is_thread_root(group) or group.threaded:
            raise refuse(errno.EOPNOTSUPP)
    elif group.threaded or can_be_thread_root(group):
        return
    if group.processes:
        raise refuse(errno.EBUSY)
