"""resctrl as perphd uses it: own groups by prefix, masks and bandwidth in percent, perphd's error classes.

A thin layer above the package ``rdt``, which does not depend on perphd.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from posixpath import basename, dirname
from typing import Final, Protocol, runtime_checkable

import rdt
from perphd.domain import errors
from perphd.domain.allocation import KEEP, Settings
from perphd.domain.errors import KernelError
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.host.fs import Identity, KernelFs
from rdt.monitor import OCCUPANCY, TOTAL

PREFIX: Final = "perphd"
"""perphd's groups are named ``perphd.WORKLOAD``."""
CALIBRATION_PREFIX: Final = "rdtcal"
"""Prefix of the groups of ``perphctl calibrate``. It equals ``rdt.calibrate.PREFIX``, whose import is slow."""
LOOK_AGAIN_S: Final = 30.0
"""Seconds between two checks of the mount table for a resctrl mounted elsewhere."""
LOCK_WAIT_S: Final = 2.0
"""Seconds for which a change, in its own thread, waits for the tree's lock."""


class LockHeld(errors.Busy):
    """Another program holds resctrl's lock; the text names it."""


MONITORING_KNOB: Final = "resctrl_monitoring"
"""Name of monitor groups in the journal and in reports."""

_CLASSES: Final[tuple[tuple[type[rdt.ResctrlError], type[errors.KernelError], int], ...]] = (
    (rdt.Locked, LockHeld, errno.EAGAIN),
    (rdt.Busy, errors.Busy, errno.EAGAIN),
    (rdt.Full, errors.Full, errno.ENOSPC),
    (rdt.Gone, errors.Gone, errno.ENOENT),
    (rdt.Invalid, errors.Invalid, errno.EINVAL),
    (rdt.Unsupported, errors.Unsupported, errno.EOPNOTSUPP),
    (rdt.Denied, errors.Denied, errno.EACCES),
)


@runtime_checkable
class _HasRawFs(Protocol):
    """Kernel files that are also available in the form that ``rdt`` needs."""

    @property
    def raw(self) -> rdt.Fs:
        """The same files with plain OSError, mkdir and rmdir."""


def open_monitoring(fs: KernelFs, lock_timeout_s: float) -> rdt.Groups | str:
    """Perphd's groups for counting cache occupancy or memory bandwidth, or why they cannot be counted.

    The groups never wait for a monitoring id.
    """
    groups = _open(fs, PREFIX, lock_timeout_s)
    if isinstance(groups, str):
        return groups
    monitoring = groups.resctrl.info.monitoring
    if monitoring is None or not set(monitoring.features) & {OCCUPANCY, TOTAL}:
        return "this machine counts neither cache occupancy (CMT) nor memory bandwidth (MBM)"
    return rdt.Groups(groups.resctrl, PREFIX, limits=rdt.Limits(busy_wait_s=0.0, fill_passes=3))


def _open(fs: KernelFs, prefix: str, lock_timeout_s: float | None = LOCK_WAIT_S) -> rdt.Groups | str:
    if not isinstance(fs, _HasRawFs):
        return "these kernel files have no resctrl"
    mount = rdt.find_mount(fs.raw)
    root = rdt.DEFAULT_ROOT if mount is None else mount.path
    try:
        return rdt.Resctrl.open(fs.raw, root, lock_timeout_s=lock_timeout_s).groups(prefix)
    except rdt.ResctrlError as exc:
        return str(exc)


def open_groups(fs: KernelFs, prefix: str = PREFIX) -> rdt.Groups | str:
    """Perphd's groups on this host, or why it can have none. Mounts nothing."""
    groups = _open(fs, prefix)
    if isinstance(groups, str):
        return groups
    return (
        groups if groups.resctrl.info.can_control else "this machine can allocate neither cache nor bandwidth"
    )


def patient(groups: rdt.Groups, lock_timeout_s: float | None) -> rdt.Groups:
    """The same groups for use in another thread, with another lock timeout."""
    return groups.resctrl.patient(lock_timeout_s).groups(groups.prefix.text)


class Mounted:
    """The resctrl mount in use.

    Its description is read again after a new mount or a change of domains. A check costs one stat(2), because ``info``
    of another mount has another identity.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._found: rdt.Groups | str | None = None
        self._seen: Identity | None = None
        self._looked_s = 0.0
        self._shown: frozenset[rdt.Cell] = frozenset()

    def look(self, now_s: float) -> bool:
        """True if a different resctrl (or none) is mounted than at the last check."""
        before = self._found
        seen = self._identity()
        stale = isinstance(before, str) and not 0 <= now_s - self._looked_s < LOOK_AGAIN_S
        if before is None or seen != self._seen or stale:
            self._found, self._looked_s = open_groups(self._fs), now_s
            self._seen = self._identity()
        return before is not None and self._found is not before and self._found != before

    def groups(self, now_s: float) -> rdt.Groups | str:
        """Perphd's groups, or why there are none."""
        self.look(now_s)
        return self.found_or_why

    @property
    def found_or_why(self) -> rdt.Groups | str:
        """Perphd's groups at the last check, or why there were none."""
        return self._found if self._found is not None else ""

    @property
    def found(self) -> rdt.Groups | None:
        """Perphd's groups at the last check; None if there were none."""
        return self._found if isinstance(self._found, rdt.Groups) else None

    def follow(self, shown: rdt.Schemata) -> rdt.Groups | None:
        """The groups with a new description if this schemata shows different domains; None if unchanged."""
        found = self._found
        if not isinstance(found, rdt.Groups):
            return None
        cells = frozenset(cell for cell, _ in shown.cells())
        if cells == self._shown or cells == frozenset(found.resctrl.info.cells()):
            return None
        self._shown = cells
        again = open_groups(self._fs)
        if isinstance(again, str):
            return None
        self._found = again
        return again

    @property
    def root(self) -> str:
        """Path of the resctrl mount, or its usual path."""
        found = self.found
        return rdt.DEFAULT_ROOT if found is None else found.resctrl.access.root

    def _identity(self) -> Identity | None:
        try:
            return self._fs.identity(f"{self.root}/info")
        except KernelError:
            return None


def why_not(groups: rdt.Groups, setting: str) -> str:
    """Reason why ``llc_masks`` or ``mba_pct`` cannot be set on this machine; empty if it can."""
    info = groups.resctrl.info
    if setting == "llc_masks":
        return "" if info.cache(3) else "this machine cannot divide its last-level cache (no CAT)"
    bandwidth = info.bandwidths.get("MB")
    if bandwidth is None:
        return "this machine cannot throttle memory bandwidth (no MBA)"
    if not bandwidth.is_percent:
        return f"memory bandwidth is given in {bandwidth.unit.name.lower()} here, not in percent"
    return ""


def resources(info: rdt.Info, setting: str) -> tuple[str, ...]:
    """Schemata resources that contain ``llc_masks`` or ``mba_pct``; with CDP those of code and data."""
    return tuple(cache.name for cache in info.cache(3)) if setting == "llc_masks" else ("MB",)


def wanted_schemata(info: rdt.Info, target: Settings, setting: str) -> rdt.Schemata:
    """Schemata for ``llc_masks`` or ``mba_pct`` of ``target``, in the domains that this setting names.

    With CDP, code and data get the same mask.
    """
    value = getattr(target, setting)
    named = {} if value is KEEP else dict(value)
    return rdt.Schemata.of(dict.fromkeys(resources(info, setting), named))


def settings_of(
    info: rdt.Info, target: Settings, found: rdt.Schemata, fresh: rdt.Schemata
) -> dict[str, object]:
    """``llc_masks`` and ``mba_pct`` as a group's schemata show them, for requested and for restricted domains.

    ``fresh``: the values of a domain that is not restricted.
    """
    settings: dict[str, object] = {}
    for setting in RESCTRL_SETTINGS:
        value = getattr(target, setting)
        asked = set() if value is KEEP else {domain for domain, _ in value}
        if setting == "mba_pct" and not ("MB" in info.bandwidths and info.bandwidths["MB"].is_percent):
            settings[setting] = KEEP
            continue
        name = next(iter(resources(info, setting)), "")
        cells: Mapping[int, int] = found.values.get(name, {})
        shown = tuple(
            (domain, cells[domain])
            for domain in sorted(cells)
            if domain in asked or cells[domain] != fresh.get(name, domain)
        )
        settings[setting] = shown or KEEP
    return settings


def check_schemata(info: rdt.Info, wanted: rdt.Schemata, present: rdt.Schemata) -> str:
    """Reason why the machine would refuse this schemata; empty if no reason is known."""
    from rdt.schemata import check

    try:
        check(wanted, info, present)
    except rdt.ResctrlError as exc:
        return str(exc)
    return ""


def same_schemata(info: rdt.Info, wanted: rdt.Schemata, found: rdt.Schemata) -> bool:
    """True if ``found`` is how the machine shows ``wanted``; absent domains are ignored."""
    from rdt.schemata import differences

    present, _ = wanted.present_in(found)
    return not differences(present, found, info)


def as_kernel_error(error: rdt.ResctrlError) -> errors.KernelError:
    """Convert an error of ``rdt`` to perphd's classes."""
    kind, number = next(
        ((ours, number) for theirs, ours, number in _CLASSES if isinstance(error, theirs)),
        (errors.Broken, errno.EIO),
    )
    said = "; ".join(text for text in (error.status, error.reason) if text)
    return kind(error.path, error.doing, error.errno or number, error.value, said, error.advice)


def left_by_calibration(fs: KernelFs) -> tuple[str, ...]:
    """Directories of groups left by a killed ``perphctl calibrate``.

    Groups with tasks are in use and not listed.
    """
    groups = _open(fs, CALIBRATION_PREFIX)
    if isinstance(groups, str):
        return ()
    access = groups.resctrl.access
    try:
        found = [name for name in access.listdir() if groups.prefix.key(name) is not None]
        return tuple(access.path(name) for name in found if not groups.resctrl.tasks(rdt.GroupRef(name)))
    except rdt.ResctrlError:
        return ()  # the calibration has just removed it


def remove_group(
    fs: KernelFs, path: str, lock_timeout_s: float | None = LOCK_WAIT_S, prefix: str = PREFIX
) -> bool:
    """Remove one of perphd's groups by its directory; its tasks return to the default group.

    Returns False if there is no such group.

    Raises:
        LockHeld: another program holds the tree's lock.
        KernelError: it could not be removed.
    """
    groups = _open(fs, prefix, lock_timeout_s)
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
