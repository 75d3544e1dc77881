"""The account of the host in a few lines. Pure functions of domain values."""

from __future__ import annotations

from perphd.domain.host_account import NO_GROUP, CpuAccount, GroupUse, HostAccount
from perphd.domain.reading import Reading, available
from perphd.domain.units import format_bytes

NAMED = 3
"""Undeclared groups that the line names."""
PARTS = ("lras", "batch", "undeclared", "kernel", "steal", "idle")
"""Fields of ``CpuAccount`` that add up to its capacity."""


def host_lines(account: HostAccount) -> tuple[str, ...]:
    """The host in two or three lines that fit 80 columns.

    ``host: 1.9 of 2 CPUs busy: LRAs 0.4, batch 0, undeclared 1.4, kernel 0.1, steal 0``
    """
    cpu = account.cpu
    parts = f"LRAs {_two(cpu.lras)}, batch {_two(cpu.batch)}, undeclared {_two(cpu.undeclared)}"
    busy = f"{_two(cpu.capacity - cpu.idle)} of {cpu.capacity:g} CPUs busy"
    lines = [f"host: {busy}: {parts}, kernel {_two(cpu.kernel)}, steal {_two(cpu.steal)}"]
    if names := _names(account):
        lines.append(f"  undeclared: {names}")
    waits = (
        ("CPU", account.cpu_some_pct),
        ("memory", account.memory_some_pct),
        ("disks", account.io_some_pct),
    )
    stalls = [f"{name} {value:.0f}%" for name, value in waits if available(value)]
    words = [f"tasks wait for {', '.join(stalls)}"] if stalls else []
    words += _memory(account.memory_total_bytes, account.memory_available_bytes)
    if words:
        lines.append(f"  {'; '.join(words)}")
    return tuple(lines)


def group_name(group: str) -> str:
    """A group as people read it."""
    return "processes in no group" if group == NO_GROUP else group


def _two(cores: float) -> str:
    return f"{round(cores, 2):.2g}" if cores >= 0.005 else "0"


def _names(account: HostAccount) -> str:
    shown = [item for item in account.undeclared if _is_worth_naming(item, account.cpu)][:NAMED]
    return ", ".join(f"{group_name(g.group)} {_two(g.cpu_cores)}" for g in shown)


def _is_worth_naming(item: GroupUse, cpu: CpuAccount) -> bool:
    return item.cpu_cores >= 0.01 * cpu.capacity


def _memory(total: Reading, left: Reading) -> list[str]:
    if not (available(total) and available(left)):
        return []
    return [f"memory {format_bytes(total - left)} of {format_bytes(total)} used"]
