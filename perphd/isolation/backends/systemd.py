"""Run-time properties of units: they survive a restart of the unit, and systemd may apply them late."""

from __future__ import annotations

from perphd.host.systemd_fs import UNIT_DEVICE, UnitFs
from perphd.isolation.backends.backend import Backend
from perphd.isolation.journal_format import Original


class SystemdUnits(Backend):
    """Units of systemd."""

    answers_late = True  # systemd may carry out a request after its answer timed out

    def __init__(self, units: UnitFs) -> None:
        self._fs = units

    def persists(self, path: str) -> bool:
        """True for properties; false for the frozen state of a unit."""
        return self._fs.outlives(path)

    def restore_absent(self, path: str, text: str) -> bool:
        """Restore the properties of a unit that is not running; False if it has a cgroup."""
        return self._fs.give_back_absent(path, text)

    def tidy(self, path: str) -> str:
        """Empty perphd's drop-ins, which would override later edits of the unit's file."""
        return self._fs.given_back(path)


def was_set_through_systemd(entry: Original) -> bool:
    """True if the file belonged to a unit when its original was recorded."""
    return entry.identity[0] == UNIT_DEVICE
