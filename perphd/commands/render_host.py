"""The account of the host in a few lines. Pure functions of domain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perphd.domain.host_account import NO_GROUP, CpuAccount, GroupUse, HostAccount, Shares, divided
from perphd.domain.reading import Reading, Unavailable, available
from perphd.domain.sample import Sample
from perphd.domain.status import WorkloadStatus
from perphd.domain.units import format_bytes
from perphd.domain.workload import Kind

NAMED = 3
"""Maximum number of undeclared groups that are named."""
PARTS = ("lras", "batch", "undeclared", "kernel", "steal", "idle")
"""Fields of ``CpuAccount`` that add up to its capacity."""


def host_lines(account: HostAccount, workloads: Sequence[WorkloadStatus] = ()) -> tuple[str, ...]:
    """The host in a few lines of at most 80 columns. ``workloads``: those whose share of memory and disks is shown.

    ``host: 1.9 of 2 CPUs busy: LRAs 0.4, batch 0, undeclared 1.4, kernel 0.1``
    """
    cpu = account.cpu
    parts = f"LRAs {_two(cpu.lras)}, batch {_two(cpu.batch)}, undeclared {_two(cpu.undeclared)}"
    busy = f"{_two(cpu.capacity - cpu.idle)} of {cpu.capacity:g} CPUs busy"
    lines = [f"host: {busy}: {parts}, kernel {_two(cpu.kernel)}"]
    if cpu.steal >= 0.005:  # only a virtual machine whose CPUs wait for the hypervisor
        lines[0] += f", steal {_two(cpu.steal)}"
    if names := _names(account):
        lines.append(f"  undeclared: {names}")
    waits = (
        ("CPU", account.cpu_some_pct),
        ("memory", account.memory_some_pct),
        ("disks", account.io_some_pct),
    )
    stalls = [f"{name} {value:.0f}%" for name, value in waits if available(value)]
    words = [f"tasks wait for {', '.join(stalls)}"] if stalls else []
    if available(account.network_bytes_per_s):
        words.append(f"network {format_bytes(account.network_bytes_per_s)}/s")
    if words:
        lines.append(f"  {'; '.join(words)}")
    total, left = account.memory_total_bytes, account.memory_available_bytes
    if available(total) and available(left):
        parts = _parts(_divided(total - left, workloads, lambda sample: sample.memory_current_bytes), "")
        lines.append(f"  memory: {format_bytes(total - left)} of {format_bytes(total)} used{parts}")
    if available(account.disk_bytes_per_s):
        parts = _parts(_divided(account.disk_bytes_per_s, workloads, _disk_use), "/s")
        lines.append(f"  disks: {format_bytes(account.disk_bytes_per_s)}/s{parts}")
    return tuple(lines)


def group_name(group: str) -> str:
    """A group's name for display."""
    return "processes in no group" if group == NO_GROUP else group


def _two(cores: float) -> str:
    return f"{round(cores, 2):.2g}" if cores >= 0.005 else "0"


def _names(account: HostAccount) -> str:
    shown = [item for item in account.undeclared if _is_worth_naming(item, account.cpu)][:NAMED]
    return ", ".join(f"{g.name or group_name(g.group)} {_two(g.cpu_cores)}" for g in shown)


def _is_worth_naming(item: GroupUse, cpu: CpuAccount) -> bool:
    return item.cpu_cores >= 0.01 * cpu.capacity


def _divided(
    total: Reading, workloads: Sequence[WorkloadStatus], use: Callable[[Sample], Reading]
) -> Shares | None:
    """Shares of running workloads; None if no workload runs, because everything then belongs to others."""
    by_kind: dict[Kind, list[Reading]] = {kind: [] for kind in Kind}
    for item in workloads:
        if item.present and item.sample is not None:
            by_kind[item.spec.kind].append(use(item.sample))
    if not any(by_kind.values()):
        return None
    return divided(total, by_kind[Kind.LRA], by_kind[Kind.BATCH])


def _parts(shares: Shares | None, per: str) -> str:
    if shares is None:
        return ""
    named = (("LRAs", shares.lras), ("batch", shares.batch), ("others", shares.others))
    return ": " + ", ".join(
        f"{name} {format_bytes(value)}{per}" if value else f"{name} 0" for name, value in named
    )


def _disk_use(sample: Sample) -> Reading:
    read, written = sample.read_bytes_per_s, sample.write_bytes_per_s
    if isinstance(read, Unavailable):
        return read
    return written if isinstance(written, Unavailable) else read + written
