"""Opens the parts that only some configurations have, and loads their modules only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from perphd.config.file import Config
from perphd.domain.topology import Topology
from perphd.host.actuators import Actuators
from perphd.host.cgroup import Hierarchies
from perphd.host.fs import KernelFs
from perphd.host.systemd import is_systemd
from perphd.host.systemd_bus import CallingBus
from perphd.host.systemd_dbus import open_bus
from perphd.isolation.journal import this_boot

if TYPE_CHECKING:
    from perphd.agent.devices.backoff import DeviceBackoff, WatchedDevices
    from perphd.agent.queue.batch_queue import BatchQueue
    from perphd.batch.runner import JobRunner


def device_backoff(
    config: Config, fs: KernelFs, hierarchies: Hierarchies, bounds: Actuators
) -> DeviceBackoff | None:
    """Backoff from contended devices, as configured; None if the configuration names no devices."""
    watched: list[WatchedDevices] = []
    if config.contention.disks:
        from perphd.agent.devices.disks import ContendedDisks

        watched.append(ContendedDisks(fs, hierarchies))
    if config.contention.links and config.network.names:
        from perphd.agent.devices.links import ContendedLinks

        full_ratio = config.network.saturated_pct / 100.0
        watched.append(ContendedLinks(fs, hierarchies, config.network.names, full_ratio))
    if config.contention.memory_bandwidth:
        from perphd.agent.devices.memory import ContendedMemory

        watched.append(ContendedMemory(bounds.mba_levels_pct, config.queue.memory_bandwidth_bytes))
    if not watched:
        return None
    from perphd.agent.devices.backoff import DeviceBackoff

    return DeviceBackoff(watched)


def runtime_folder(config: Config) -> Path:
    """The folder of the socket and of files that workloads may read."""
    return Path(config.daemon.socket).absolute().parent


def batch_queue(
    config: Config,
    fs: KernelFs,
    hierarchies: Hierarchies,
    units: CallingBus | None,
    topology: Topology,
    wall_clock: Callable[[], float],
    runner: JobRunner | None,
    hints: Path,
) -> BatchQueue | None:
    """The batch queue on this machine, on systemd if available, else on control groups."""
    if not config.queue.enabled:
        return None
    from perphd.agent.queue.batch_queue import FOLDER, BatchQueue  # loaded only on hosts with a queue
    from perphd.isolation.job_groups import JobGroups
    from perphd.isolation.job_units import JobUnits

    state_dir, boot = Path(config.daemon.state_dir).absolute(), this_boot()
    if runner is not None:
        pass
    elif is_systemd(fs):
        runner = JobUnits(units if units is not None else open_bus(), topology.memory_bytes)
    else:
        runner = JobGroups(hierarchies, state_dir / FOLDER / "units", boot, topology.memory_bytes)

    def capacity() -> tuple[float, float]:
        return float(len(topology.online - topology.isolated)), float(topology.memory_bytes)

    slots = runtime_folder(config) / "slots"
    rows = config.forecast.history_rows
    return BatchQueue(config.queue, state_dir, runner, boot, wall_clock, capacity, slots, hints, rows)
