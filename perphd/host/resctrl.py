"""resctrl as perphd uses it: own groups by prefix, masks and bandwidth in per cent, perphd's classes of errors.

Thin: the interface itself is the package ``rdt``, which knows nothing of perphd.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from posixpath import basename, dirname
from typing import Final, Protocol, runtime_checkable

import rdt
from perphd.domain import errors
from perphd.host.fs import KernelFs
from rdt.monitor import OCCUPANCY, TOTAL

PREFIX: Final = "perphd"
"""perphd's groups are named ``perphd.WORKLOAD``."""

MONITORING_KNOB: Final = "resctrl_monitoring"
"""Monitor groups stand under this name in the journal and in reports."""

_CLASSES: Final[tuple[tuple[type[rdt.ResctrlError], type[errors.KernelError], int], ...]] = (
    (rdt.Busy, errors.Busy, errno.EAGAIN),
    (rdt.Full, errors.Full, errno.ENOSPC),
    (rdt.Gone, errors.Gone, errno.ENOENT),
    (rdt.Invalid, errors.Invalid, errno.EINVAL),
    (rdt.Unsupported, errors.Unsupported, errno.EOPNOTSUPP),
    (rdt.Denied, errors.Denied, errno.EACCES),
)


@runtime_checkable
class _TwoFaced(Protocol):
    """Kernel files that can also be had as ``rdt`` wants them."""

    @property
    def raw(self) -> rdt.Fs:
        """The same files with plain OSError, and directories that can be made."""


def open_monitoring(fs: KernelFs, prefix: str = PREFIX) -> rdt.Groups | str:
    """Perphd's groups where cache occupancy or memory bandwidth can be counted, or why they cannot. Waits for no id."""
    groups = _open(fs, prefix)
    if isinstance(groups, str):
        return groups
    monitoring = groups.resctrl.info.monitoring
    if monitoring is None or not set(monitoring.features) & {OCCUPANCY, TOTAL}:
        return "this machine counts neither cache occupancy (CMT) nor memory bandwidth (MBM)"
    return rdt.Groups(groups.resctrl, prefix, limits=rdt.Limits(busy_wait_s=0.0, fill_passes=3))


def _open(fs: KernelFs, prefix: str) -> rdt.Groups | str:
    if not isinstance(fs, _TwoFaced):
        return "these kernel files have no resctrl"
    mount = rdt.find_mount(fs.raw)
    try:
        return rdt.Resctrl.open(fs.raw, rdt.DEFAULT_ROOT if mount is None else mount.path).groups(prefix)
    except rdt.ResctrlError as exc:
        return str(exc)


def open_groups(fs: KernelFs, prefix: str = PREFIX) -> rdt.Groups | str:
    """Perphd's groups on this host, or why there can be none. Mounts nothing."""
    groups = _open(fs, prefix)
    if isinstance(groups, str):
        return groups
    return groups if groups.resctrl.info.can_control else "this machine has no cache or bandwidth to give out"


def why_not(groups: rdt.Groups, setting: str) -> str:
    """Why ``llc_masks`` or ``mba_pct`` cannot be set on this machine; empty if it can."""
    info = groups.resctrl.info
    if setting == "llc_masks":
        return "" if info.cache(3) else "this machine cannot divide its last-level cache (no CAT)"
    bandwidth = info.bandwidths.get("MB")
    if bandwidth is None:
        return "this machine cannot throttle memory bandwidth (no MBA)"
    if not bandwidth.is_percent:
        return f"memory bandwidth is given in {bandwidth.unit.name.lower()} here and not in per cent"
    return ""


def wanted_schemata(
    info: rdt.Info, masks: Iterable[tuple[int, int]], pct: Iterable[tuple[int, int]]
) -> rdt.Schemata:
    """The whole schemata of a group with these masks and percentages; everything else is what a fresh group has.

    With code and data prioritisation both get the mask.
    """
    named = dict(masks)
    values = {cache.name: named for cache in info.cache(3)} | {"MB": dict(pct)}
    return info.default().merged(rdt.Schemata.of(values))


def check_schemata(groups: rdt.Groups, wanted: rdt.Schemata) -> str:
    """Why the machine would not take this schemata; empty if nothing speaks against it."""
    from rdt.schemata import check

    try:
        check(wanted, groups.resctrl.info, groups.resctrl.schemata())
    except rdt.ResctrlError as exc:
        return str(exc)
    return ""


def same_schemata(groups: rdt.Groups, wanted: rdt.Schemata, found: rdt.Schemata) -> bool:
    """True if ``found`` is how the machine shows ``wanted``; domains that are away do not count."""
    from rdt.schemata import differences

    present, _ = wanted.present_in(found)
    return not differences(present, found, groups.resctrl.info)


def as_kernel_error(error: rdt.ResctrlError) -> errors.KernelError:
    """The error in perphd's classes."""
    kind, number = next(
        ((ours, number) for theirs, ours, number in _CLASSES if isinstance(error, theirs)),
        (errors.Broken, errno.EIO),
    )
    said = "; ".join(text for text in (error.status, error.reason) if text)
    return kind(error.path, error.doing, error.errno or number, error.value, said, error.advice)


def remove_group(fs: KernelFs, path: str) -> bool:
    """Remove one of perphd's groups by its directory; its tasks fall to the default group. False: there is none.

    Raises:
        KernelError: it could not be removed.
    """
    groups = _open(fs, PREFIX)
    if isinstance(groups, str):
        if not fs.exists(path):
            return False
        raise errors.Broken(path, "rmdir", errno.EIO, detail=groups)
    parent = dirname(path)
    if basename(parent) == "mon_groups":
        control = dirname(parent)
        is_default = control == groups.resctrl.access.root
        group = rdt.GroupRef("" if is_default else basename(control), basename(path))
    else:
        group = rdt.GroupRef(basename(path))
    try:
        return groups.remove(group, with_others_monitors=True)
    except rdt.ResctrlError as exc:
        raise as_kernel_error(exc) from exc
