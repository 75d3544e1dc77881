"""Resctrl groups: they are restored by removal, and their tasks then belong to the parent group."""

from __future__ import annotations

from posixpath import basename, dirname
from typing import Final

from perphd.domain.errors import Gone, KernelError
from perphd.host.cgroup.knobs import RESCTRL_SETTINGS
from perphd.host.fs import KernelFs
from perphd.host.resctrl import (
    CALIBRATION_PREFIX,
    LOCK_WAIT_S,
    MONITORING_KNOB,
    PREFIX,
    LockHeld,
    left_by_calibration,
    remove_group,
)
from perphd.isolation.journal_format import Original
from perphd.isolation.restore_report import Outcome

_IGNORE_LOCK: Final = "end that process, or remove the group nevertheless: perphd restore --ignore-lock"


def is_group(entry: Original) -> bool:
    """True for a resctrl group, which is restored by removing it."""
    return entry.knob in RESCTRL_SETTINGS or entry.knob == MONITORING_KNOB


def is_control_group(entry: Original) -> bool:
    """True for a resctrl group that perphd created to set cache ways or memory bandwidth."""
    return entry.knob in RESCTRL_SETTINGS and basename(entry.path).startswith(f"{PREFIX}.")


class ResctrlGroups:
    """Removes perphd's groups. ``ignore_lock``: remove them even while another program holds resctrl's lock."""

    def __init__(self, fs: KernelFs, ignore_lock: bool) -> None:
        self._fs = fs
        self._lock_wait_s: float | None = None if ignore_lock else LOCK_WAIT_S

    def restore(self, entry: Original) -> tuple[Outcome, str]:
        """Remove a recorded group; returns the outcome with its explanation."""
        try:
            same_mount = self._fs.identity(dirname(entry.path)) == entry.identity
            if not same_mount or not remove_group(self._fs, entry.path, self._lock_wait_s):
                return "gone", "the group, or the resctrl mount that it was in, is gone"
        except Gone:
            return "gone", "resctrl is not mounted any more"
        except KernelError as exc:
            return "failed", self._why(exc)
        if entry.knob == MONITORING_KNOB:
            return "restored", "the monitor group is removed, its tasks stay in their control group"
        return "restored", "the group is removed, its tasks are in the default group"

    def remove_calibrations(self) -> list[tuple[str, Outcome, str]]:
        """Remove the groups of a killed calibration, which no journal names; returns (path, outcome, note) of each."""
        found: list[tuple[str, Outcome, str]] = []
        for path in left_by_calibration(self._fs):
            try:
                remove_group(self._fs, path, self._lock_wait_s, CALIBRATION_PREFIX)
            except KernelError as exc:
                found.append((path, "failed", self._why(exc)))
            else:
                found.append((path, "restored", "the group of a killed calibration is removed"))
        return found

    def _why(self, error: KernelError) -> str:
        if not isinstance(error, LockHeld):
            return str(error)
        if self._lock_wait_s is not None:
            self._lock_wait_s = 0.0  # wait only once, not for every group
        return f"{error}; {_IGNORE_LOCK}"
