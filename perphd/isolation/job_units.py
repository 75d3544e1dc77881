"""Runs batch jobs as transient systemd units (org.freedesktop.systemd1(5), StartTransientUnit).

A job's unit outlives its processes (``RemainAfterExit=``), so that a daemon started later finds the exit status.
Copper's units are in a slice of their own with the lowest CPU and I/O weight, silver's are in
``system.slice``.

The job's command never passes through a shell: its words are arguments of a fixed script that opens the output file as
the job's user. systemd itself opens only the log, which is perphd's own file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perphd.batch.job import QueuedJob, UnitEvidence, attempt_of
from perphd.batch.runner import JobRefused, StartFailed, UnitState
from perphd.domain.errors import Gone, Invalid, KernelError
from perphd.host.systemd_bus import CallingBus, NoAnswer, Variant
from perphd.qos.band_settings import copper_ceiling
from perphd.qos.bands import IO_WEIGHT_COPPER, OOM_SCORE_COPPER, QosBand

SLICE: Final = "perphdjobs.slice"
"""Slice of copper jobs. It is outside perphd.slice, because that slice has the daemon's weight."""
SILVER_SLICE: Final = "system.slice"
DAEMON_UNIT: Final = "perphd.service"
LEAST_CPU_WEIGHT: Final = 1
_SIGNALS: Final = 128
_KILLED, _DUMPED = 2, 3  # CLD_KILLED, CLD_DUMPED
_SCRIPT: Final = 'test -z "$1" || exec >>"$1" 2>&1; shift; exec "$@"'
_NAMES: Final = "perphd-job-*.service"


class JobUnits:
    """The ``JobRunner`` for hosts with systemd. ``host_memory_bytes``: bounds copper's memory; 0 if unknown."""

    def __init__(self, bus: CallingBus, host_memory_bytes: int = 0) -> None:
        self._bus, self._host_memory_bytes = bus, host_memory_bytes
        self._has_slice = False

    def make_group(self, job: QueuedJob) -> str:
        """See ``JobRunner``: systemd creates the group together with its first process."""
        return ""

    def start(self, job: QueuedJob, log: str) -> str:
        """See ``JobRunner``."""
        copper = job.spec.band is QosBand.COPPER
        try:
            if copper:
                self._start_slice()
            self._bus.call(
                "StartTransientUnit",
                "ssa(sv)a(sa(sv))",
                [job.unit, "fail", _properties(job, log), []],
                job.unit,
            )
        except NoAnswer:
            raise  # systemd may have started it
        except Invalid as exc:
            raise JobRefused(f"systemd refuses the job: {exc}") from exc
        except KernelError as exc:
            if "UnitExists" not in str(exc) and "already" not in str(exc):
                raise StartFailed(str(exc)) from exc
        return f"/{SLICE if copper else SILVER_SLICE}/{job.unit}"

    def look(self, jobs: Sequence[QueuedJob]) -> Mapping[int, UnitState]:
        """See ``JobRunner``."""
        if not jobs:
            return {}
        (listed,) = self._bus.call("ListUnitsByNames", "as", [[job.unit for job in jobs]], jobs[0].unit)
        rows = {row[0]: row for row in listed}
        found = {}
        for job in jobs:
            if job.unit in rows:
                with contextlib.suppress(Gone):
                    found[job.id] = self._state(job, rows[job.unit])
        return found

    def stop(self, unit: str) -> bool:
        """See ``JobRunner``."""
        with contextlib.suppress(Gone):
            self._bus.call("ThawUnit", "s", [unit], unit) if self._is_frozen(unit) else None
            self._bus.call("StopUnit", "ss", [unit, "replace"], unit)
        with contextlib.suppress(Gone):
            self._bus.call("ResetFailedUnit", "s", [unit], unit)
        return unit not in self.units()

    def units(self) -> tuple[str, ...]:
        """See ``JobRunner``."""
        (listed,) = self._bus.call("ListUnitsByPatterns", "asas", [[], [_NAMES]], _NAMES)
        return tuple(
            str(row[0]) for row in listed if row[2] != "not-found" and attempt_of(row[0]) is not None
        )

    def _state(self, job: QueuedJob, row: Sequence[Any]) -> UnitState:
        _, _, load, active, sub, _, path, *_ = row
        cgroup = f"/{SLICE if job.spec.band is QosBand.COPPER else SILVER_SLICE}/{job.unit}"
        if load == "not-found" or (active == "inactive" and load != "loaded"):
            return UnitState(UnitEvidence.NEVER_STARTED, cgroup=cgroup)
        if active in ("active", "activating", "reloading", "deactivating") and sub != "exited":
            return UnitState(UnitEvidence.RUNS, cgroup=cgroup)
        if active == "inactive":
            return UnitState(UnitEvidence.UNKNOWN, cgroup=cgroup, reason="systemctl stopped it")
        (all_of_it,) = self._bus.call("GetAll", "s", ["org.freedesktop.systemd1.Service"], job.unit, path)
        code, status = int(all_of_it["ExecMainCode"]), int(all_of_it["ExecMainStatus"])
        result = str(all_of_it["Result"])
        shown = _SIGNALS + status if code in (_KILLED, _DUMPED) else status
        reason = "" if result in ("success", "exit-code") else f"systemd reports: {result}"
        if shown == 0 and result != "success":
            return UnitState(UnitEvidence.ENDED, _SIGNALS - 1, cgroup, reason)
        return UnitState(UnitEvidence.ENDED, shown, cgroup, reason)

    def _is_frozen(self, unit: str) -> bool:
        (path,) = self._bus.call("GetUnit", "s", [unit], unit)
        (state,) = self._bus.call("Get", "ss", ["org.freedesktop.systemd1.Unit", "FreezerState"], unit, path)
        return str(state) != "running"

    def _start_slice(self) -> None:
        """Create copper's slice with the lowest CPU and I/O weight, and a bound on the memory of all copper jobs."""
        if self._has_slice:
            return
        properties = [
            ("Description", Variant("s", "Jobs of perphd's batch queue")),
            ("CPUWeight", Variant("t", LEAST_CPU_WEIGHT)),
            ("IOWeight", Variant("t", IO_WEIGHT_COPPER)),
        ]
        if self._host_memory_bytes:
            properties.append(("MemoryHigh", Variant("t", copper_ceiling(self._host_memory_bytes))))
        try:
            self._bus.call("StartTransientUnit", "ssa(sv)a(sa(sv))", [SLICE, "fail", properties, []], SLICE)
        except KernelError as exc:
            if "UnitExists" not in str(exc) and "already" not in str(exc):
                raise
        self._has_slice = True


def _properties(job: QueuedJob, log: str) -> list[tuple[str, Variant]]:
    spec = job.spec
    copper = spec.band is QosBand.COPPER
    words = ["/bin/sh", "-c", _SCRIPT, "sh", spec.output, *spec.command]
    # systemd expands variables in the command's words; $$ stands for a literal $.
    argv = [word.replace("$", "$$") for word in words]
    properties = [
        ("Description", Variant("s", f"job {job.id} of perphd's batch queue")),
        ("Slice", Variant("s", SLICE if copper else SILVER_SLICE)),
        ("Type", Variant("s", "simple")),
        # On shutdown the daemon must stop first; otherwise it would count jobs ended by systemd as failed.
        ("Before", Variant("as", [DAEMON_UNIT])),
        ("RemainAfterExit", Variant("b", True)),
        ("ExecStart", Variant("a(sasb)", [("/bin/sh", argv, False)])),
        ("User", Variant("s", str(spec.uid))),
        ("Group", Variant("s", str(spec.gid))),
        ("SupplementaryGroups", Variant("as", [str(gid) for gid in spec.groups])),
        ("WorkingDirectory", Variant("s", spec.directory)),
        ("Environment", Variant("as", [f"{name}={value}" for name, value in spec.environment])),
        ("StandardInput", Variant("s", "null")),
        ("StandardOutputFileToAppend", Variant("s", log)),
        ("StandardErrorFileToAppend", Variant("s", log)),
        ("OOMScoreAdjust", Variant("i", OOM_SCORE_COPPER if copper else 0)),
        ("UMask", Variant("u", 0o022)),
        ("CPUAccounting", Variant("b", True)),
        ("MemoryAccounting", Variant("b", True)),
    ]
    if spec.limited:
        properties.append(("MemoryMax", Variant("t", spec.memory_bytes)))
    return properties
