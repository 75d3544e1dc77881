"""systemd in memory above a ``FakeKernel``: what it does with properties as captured from 252 and 257."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Gone, KernelError
from perphd.host.fs import KernelFs
from perphd.host.systemd_dropins import DropIns
from perphd.host.systemd_fs import UnitFs
from perphd.host.systemd_properties import IDLE_WEIGHT, UNSET, Property
from tests.unit.isolation_kernel import V2_FILES, FakeKernel

_NEEDS = {"AllowedCPUs": "cpuset", "AllowedMemoryNodes": "cpuset", "CPU": "cpu", "IO": "io"}
_MEMORY = {
    "MemoryMin": "memory.min",
    "MemoryLow": "memory.low",
    "MemoryHigh": "memory.high",
    "MemoryMax": "memory.max",
}


class BootedKernel(FakeKernel):
    """A v2 host with systemd as PID 1."""

    def exists(self, path: str) -> bool:
        return path == "/run/systemd/system" or super().exists(path)


def no_drop_ins(fs: KernelFs) -> DropIns:
    """systemd keeps none here."""
    return DropIns(fs, lambda path: None, lambda path, text: None, lambda path: None)


class Notes:
    """Which lists are given up; the groups' end is nothing here."""

    def __init__(self) -> None:
        self.files: set[tuple[str, str]] = set()

    def add(self, directory: str, file: str) -> None:
        self.files.add((directory, file))

    def discard(self, directory: str, file: str) -> None:
        self.files.discard((directory, file))

    def holds(self, directory: str, file: str) -> bool:
        return (directory, file) in self.files


@dataclass
class FakeSystemd:
    """Units are children of system.slice. Values that the kernel refuses are journaled and answered with success."""

    kernel: FakeKernel = field(default_factory=lambda: BootedKernel("v2"))
    properties: dict[str, dict[str, Property]] = field(default_factory=dict)
    calls: list[tuple[str, tuple[Property, ...]]] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    fault: KernelError | None = None
    known: set[str] = field(default_factory=set)
    scales_bfq: bool = True
    """Whether BFQ gets 1/11 of what ``IOWeight`` is above the default (since 250), instead of ``IOWeight`` itself."""
    given_up: Notes = field(default_factory=lambda: Notes())

    def __post_init__(self) -> None:
        self.kernel.mkdir("/system.slice")
        self._strip("/sys/fs/cgroup/system.slice")

    def fs(self) -> UnitFs:
        return UnitFs(
            self.kernel,
            self.kernel.hierarchies,
            self,
            sleep=lambda s: None,
            drop_ins=no_drop_ins(self.kernel),
            given_up=self.given_up,
        )

    # -- what an administrator does ------------------------------------------------------------------------------

    def start(self, unit: str) -> None:
        self.known.add(unit)
        self.kernel.mkdir(f"/system.slice/{unit}")
        self._strip(self._directory(unit))
        self._realize(unit)

    def stop(self, unit: str) -> None:
        self.kernel.rmdir(f"/system.slice/{unit}")

    def restart(self, unit: str) -> None:
        self.stop(unit)
        self.start(unit)

    # -- Bus -----------------------------------------------------------------------------------------------------

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        if self.fault is not None:
            raise self.fault
        if unit not in self.known:
            raise Gone(unit, "SetUnitProperties", errno.ENOENT)
        self.calls.append((unit, tuple(properties)))
        kept = self.properties.setdefault(unit, {})
        for item in properties:
            kept[item.name] = _merged(kept.get(item.name), item) if item.signature == "a(st)" else item
        self._realize(unit, {item.name for item in properties})

    def freeze(self, unit: str, frozen: bool) -> None:
        self._set(unit, "cgroup.freeze", str(int(frozen)))

    def close(self) -> None:
        pass

    # -- what systemd does ---------------------------------------------------------------------------------------

    def _directory(self, unit: str) -> str:
        return f"/sys/fs/cgroup/system.slice/{unit}"

    def _strip(self, directory: str) -> None:
        """Only memory is on for a unit that asks for nothing."""
        files = self.kernel.directories[directory].files
        for controller in ("cpu", "cpuset", "io"):
            for name in V2_FILES[controller]:
                files.pop(name, None)
        files["cgroup.controllers"] = "memory"

    def _realize(self, unit: str, changed: Iterable[str] | None = None) -> None:
        directory = self._directory(unit)
        if directory not in self.kernel.directories:
            return
        kept = self.properties.get(unit, {})
        for name, item in kept.items():
            controller = next((value for key, value in _NEEDS.items() if name.startswith(key)), "")
            files = self.kernel.directories[directory].files
            needed = item.value not in (UNSET, b"", ())
            if isinstance(item.value, tuple):
                needed = any(number != UNSET for _, number in item.value)
            if controller and needed:
                for file, text in V2_FILES[controller].items():
                    files.setdefault(file, text)
                files["cgroup.controllers"] = f"memory {controller}"
            if changed is None or name in changed:
                self._apply(unit, item, kept)

    def _apply(self, unit: str, item: Property, kept: dict[str, Property]) -> None:
        value = item.value
        if isinstance(value, bytes):
            file = "cpuset.cpus" if item.name == "AllowedCPUs" else "cpuset.mems"
            self._set(unit, file, str(CpuSet(int.from_bytes(value, "little"))))
        elif item.name in _MEMORY:
            self._set(unit, _MEMORY[item.name], "max" if value == UNSET else str(value))
        elif item.name == "CPUWeight":
            self._set(unit, "cpu.idle", "1" if value == IDLE_WEIGHT else "0")
            if value != IDLE_WEIGHT:
                self._set(unit, "cpu.weight", "100" if value == UNSET else str(value))
        elif item.name == "IOWeight":
            assert isinstance(value, int)
            weight = 100 if value == UNSET else value
            if self.scales_bfq and weight > 100:
                weight = 100 + (weight - 100) * 900 // 9900
            self._set(unit, "io.bfq.weight", f"default {weight}")
        elif item.name == "CPUQuotaPerSecUSec":
            period = kept["CPUQuotaPeriodUSec"].value
            assert isinstance(value, int)
            assert isinstance(period, int)
            period = 100_000 if period == UNSET else period
            quota = "max" if value == UNSET else str(value * period // 1_000_000)
            self._set(unit, "cpu.max", f"{quota} {period}")
        elif item.name.endswith("Max"):
            assert isinstance(value, tuple)
            short = {"IOReadBandwidthMax": "rbps", "IOWriteBandwidthMax": "wbps", "IOReadIOPSMax": "riops"}
            name = short.get(item.name, "wiops")
            for path, number in value:
                device = path.removeprefix("/dev/block/")
                self._set(unit, "io.max", f"{device} {name}={'max' if number == UNSET else number}")

    def _set(self, unit: str, file: str, text: str) -> None:
        path = f"{self._directory(unit)}/{file}"
        try:
            if self.kernel.exists(path):
                self.kernel.set(path, text)
        except KernelError as exc:
            self.journal.append(str(exc))


def _merged(before: Property | None, item: Property) -> Property:
    """A list of disks is merged into what there is; an empty one is "no limit" for all that there are."""
    have = dict(before.value) if before is not None and isinstance(before.value, tuple) else {}
    assert isinstance(item.value, tuple)
    given = dict(item.value) if item.value else dict.fromkeys(have, UNSET)
    return Property(item.name, item.signature, tuple((have | given).items()))
