"""The account of the host in one line. Pure functions of domain values."""

from __future__ import annotations

from perphd.domain.host_account import NO_GROUP, CpuAccount, GroupUse, HostAccount
from perphd.domain.reading import Reading, available
from perphd.domain.units import format_bytes

NAMED = 3
"""Undeclared groups that the line names."""
PARTS = ("lras", "batch", "undeclared", "kernel", "steal", "idle")
"""Fields of ``CpuAccount`` that add up to its capacity."""


def host_line(account: HostAccount) -> str:
    """``host: 1.9 of 2 CPUs busy: LRAs 0.4, batch 0, undeclared 1.4 (/hogs 1.3), kernel 0.1, steal 0; ...``."""
    cpu = account.cpu
    parts = (
        f"LRAs {_two(cpu.lras)}",
        f"batch {_two(cpu.batch)}",
        f"undeclared {_two(cpu.undeclared)}{_names(account)}",
    )
    words = [
        f"host: {_two(cpu.capacity - cpu.idle)} of {cpu.capacity:g} CPUs busy: {', '.join(parts)}, "
        f"kernel {_two(cpu.kernel)}, steal {_two(cpu.steal)}"
    ]
    waits = (
        ("CPU", account.cpu_some_pct),
        ("memory", account.memory_some_pct),
        ("disks", account.io_some_pct),
    )
    stalls = [f"{name} {value:.0f} %" for name, value in waits if available(value)]
    if stalls:
        words.append(f"tasks wait for {', '.join(stalls)}")
    words += _memory(account.memory_total_bytes, account.memory_available_bytes)
    return "; ".join(words)


def group_name(group: str) -> str:
    """A group as people read it."""
    return "processes in no group" if group == NO_GROUP else group


def _two(cores: float) -> str:
    return f"{cores:.2g}" if cores >= 0.005 else "0"


def _names(account: HostAccount) -> str:
    shown = [item for item in account.undeclared if _is_worth_naming(item, account.cpu)][:NAMED]
    return f" ({', '.join(f'{group_name(g.group)} {_two(g.cpu_cores)}' for g in shown)})" if shown else ""


def _is_worth_naming(item: GroupUse, cpu: CpuAccount) -> bool:
    return item.cpu_cores >= 0.01 * cpu.capacity


def _memory(total: Reading, left: Reading) -> list[str]:
    if not (available(total) and available(left)):
        return []
    return [f"memory {format_bytes(total - left)} of {format_bytes(total)} used"]
