"""Backends for the kinds of knobs: cgroup files, properties of units, traffic classes, resctrl groups.

``Backends`` finds the backend of a file, so the engine above never asks what kind of file system it has.
"""

from __future__ import annotations

from posixpath import dirname

from perphd.host.egress_fs import EgressFs, is_egress
from perphd.host.fs import KernelFs
from perphd.host.systemd_fs import UnitFs
from perphd.isolation.backends.backend import Backend
from perphd.isolation.backends.systemd import SystemdUnits
from perphd.isolation.backends.tc import TrafficClasses


class Backends:
    """The backends of these kernel files."""

    def __init__(self, fs: KernelFs) -> None:
        egress = fs if isinstance(fs, EgressFs) else None
        written = fs if egress is None else egress.below
        self._files = Backend()
        self._classes = self._files if egress is None else TrafficClasses(egress)
        self._unit_files = written if isinstance(written, UnitFs) else None
        self._units = self._files if self._unit_files is None else SystemdUnits(self._unit_files)

    def of(self, path: str) -> Backend:
        """The backend of this file."""
        if is_egress(path):
            return self._classes
        return self._units if self.is_units(path) else self._files

    def is_units(self, path: str) -> bool:
        """True if this file is a unit's own, which is set through systemd."""
        return self._unit_files is not None and bool(self._unit_files.unit(dirname(path)))
