"""resctrl as perphd uses it: own groups by prefix, masks and bandwidth in per cent, perphd's classes of errors.

Thin: the interface itself is the package ``rdt``, which knows nothing of perphd.
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
"""Groups of ``perphctl calibrate`` are named so: ``rdt.calibrate.PREFIX``, which takes long to import."""
LOOK_AGAIN_S: Final = 30.0
"""Without resctrl at its usual place, the mount table is read for another one so often."""
LOCK_WAIT_S: Final = 2.0
"""How long a change waits for programs that hold the tree's lock, in a thread of its own."""


class LockHeld(errors.Busy):
    """Another program holds resctrl's lock; the text names it."""


MONITORING_KNOB: Final = "resctrl_monitoring"
"""Monitor groups stand under this name in the journal and in reports."""

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
class _TwoFaced(Protocol):
    """Kernel files that can also be had as ``rdt`` wants them."""

    @property
    def raw(self) -> rdt.Fs:
        """The same files with plain OSError, and directories that can be made."""


def open_monitoring(fs: KernelFs, lock_timeout_s: float) -> rdt.Groups | str:
    """Perphd's groups where cache occupancy or memory bandwidth can be counted, or why they cannot. Waits for no id."""
    groups = _open(fs, PREFIX, lock_timeout_s)
    if isinstance(groups, str):
        return groups
    monitoring = groups.resctrl.info.monitoring
    if monitoring is None or not set(monitoring.features) & {OCCUPANCY, TOTAL}:
        return "this machine counts neither cache occupancy (CMT) nor memory bandwidth (MBM)"
    return rdt.Groups(groups.resctrl, PREFIX, limits=rdt.Limits(busy_wait_s=0.0, fill_passes=3))


def _open(fs: KernelFs, prefix: str, lock_timeout_s: float | None = LOCK_WAIT_S) -> rdt.Groups | str:
    if not isinstance(fs, _TwoFaced):
        return "these kernel files have no resctrl"
    mount = rdt.find_mount(fs.raw)
    root = rdt.DEFAULT_ROOT if mount is None else mount.path
    try:
        return rdt.Resctrl.open(fs.raw, root, lock_timeout_s=lock_timeout_s).groups(prefix)
    except rdt.ResctrlError as exc:
        return str(exc)


def open_groups(fs: KernelFs, prefix: str = PREFIX) -> rdt.Groups | str:
    """Perphd's groups on this host, or why there can be none. Mounts nothing."""
    groups = _open(fs, prefix)
    if isinstance(groups, str):
        return groups
    return groups if groups.resctrl.info.can_control else "this machine has no cache or bandwidth to give out"


def patient(groups: rdt.Groups, lock_timeout_s: float | None) -> rdt.Groups:
    """The same groups for another thread, with a waiting time for the tree's lock of its own."""
    return groups.resctrl.patient(lock_timeout_s).groups(groups.prefix.text)


class Mounted:
    """The resctrl that is mounted now, described again when it was mounted anew or its domains have changed.

    Looking costs one stat(2): ``info`` of another mount is another directory.
    """

    def __init__(self, fs: KernelFs) -> None:
        self._fs = fs
        self._found: rdt.Groups | str | None = None
        self._seen: Identity | None = None
        self._looked_s = 0.0
        self._shown: frozenset[rdt.Cell] = frozenset()

    def look(self, now_s: float) -> bool:
        """True if another resctrl (or none) is mounted than at the last look."""
        before = self._found
        seen = self._identity()
        stale = isinstance(before, str) and not 0 <= now_s - self._looked_s < LOOK_AGAIN_S
        if before is None or seen != self._seen or stale:
            self._found, self._looked_s = open_groups(self._fs), now_s
            self._seen = self._identity()
        return before is not None and self._found is not before and self._found != before

    def groups(self, now_s: float) -> rdt.Groups | str:
        """Perphd's groups, or why there can be none."""
        self.look(now_s)
        return self._found if self._found is not None else ""

    @property
    def found(self) -> rdt.Groups | None:
        """Perphd's groups as last looked at; None: there can be none."""
        return self._found if isinstance(self._found, rdt.Groups) else None

    def follow(self, shown: rdt.Schemata) -> rdt.Groups | None:
        """The groups described again, if this schemata shows other domains than are known; None: as known."""
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
        """Where resctrl is mounted, or would usually be."""
        found = self.found
        return rdt.DEFAULT_ROOT if found is None else found.resctrl.access.root

    def _identity(self) -> Identity | None:
        try:
            return self._fs.identity(f"{self.root}/info")
        except KernelError:
            return None


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


def resources(info: rdt.Info, setting: str) -> tuple[str, ...]:
    """The lines of a schemata that ``llc_masks`` or ``mba_pct`` stands in; with CDP two have the mask."""
    return tuple(cache.name for cache in info.cache(3)) if setting == "llc_masks" else ("MB",)


def wanted_schemata(info: rdt.Info, target: Settings, setting: str) -> rdt.Schemata:
    """What one of the two settings asks for, in the domains that it names; with CDP both halves get the mask."""
    value = getattr(target, setting)
    named = {} if value is KEEP else dict(value)
    return rdt.Schemata.of(dict.fromkeys(resources(info, setting), named))


def settings_of(info: rdt.Info, target: Settings, found: rdt.Schemata) -> dict[str, object]:
    """Both settings as a group's schemata has them: the domains that are asked for, and others that are narrowed."""
    fresh = info.default()
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
    """Why the machine would not take this schemata; empty if nothing speaks against it."""
    from rdt.schemata import check

    try:
        check(wanted, info, present)
    except rdt.ResctrlError as exc:
        return str(exc)
    return ""


def same_schemata(info: rdt.Info, wanted: rdt.Schemata, found: rdt.Schemata) -> bool:
    """True if ``found`` is how the machine shows ``wanted``; domains that are away do not count."""
    from rdt.schemata import differences

    present, _ = wanted.present_in(found)
    return not differences(present, found, info)


def as_kernel_error(error: rdt.ResctrlError) -> errors.KernelError:
    """The error in perphd's classes."""
    kind, number = next(
        ((ours, number) for theirs, ours, number in _CLASSES if isinstance(error, theirs)),
        (errors.Broken, errno.EIO),
    )
    said = "; ".join(text for text in (error.status, error.reason) if text)
    return kind(error.path, error.doing, error.errno or number, error.value, said, error.advice)


def left_by_calibration(fs: KernelFs) -> tuple[str, ...]:
    """Directories of groups that a killed ``perphctl calibrate`` left. One with streams in it is in use."""
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
    """Remove one of perphd's groups by its directory; its tasks fall to the default group. False: there is none.

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
