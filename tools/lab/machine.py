"""The machine on which a lab ran, in words and figures."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about the machine that a reader needs to judge the figures."""

    processor: str
    cpus: int
    memory_gib: float
    kernel: str
    system: str
    python: str
    cgroups: str
    software: tuple[str, ...]
    batch_language: str
    virtual: bool
    load_average: float
    lab_shares: int
    scale: int
    commit: str


def describe(
    *,
    cgroups: str,
    software: tuple[str, ...],
    batch_language: str,
    lab_shares: int,
    load_average: float,
    scale: int = 1,
) -> Machine:
    """Examine this machine; facts that cannot be determined are 'unknown'."""
    cpuinfo = _read("/proc/cpuinfo")
    return Machine(
        processor=_find(r"model name\s*:\s*(.+)", cpuinfo),
        cpus=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        system=_find(r'PRETTY_NAME="(.+)"', _read("/etc/os-release")),
        python=platform.python_version(),
        cgroups=cgroups,
        software=software,
        batch_language=batch_language,
        virtual="hypervisor" in _find(r"flags\s*:\s*(.+)", cpuinfo).split(),
        load_average=round(load_average, 2),
        lab_shares=lab_shares,
        scale=scale,
        commit=_output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
        or "unknown",
    )


def sentence(machine: Machine) -> str:
    """The machine in one sentence."""
    kind = "virtual machine" if machine.virtual else "machine"
    return (
        f"{kind} with {machine.cpus} CPUs ({machine.processor}), {machine.memory_gib:g} GiB, {machine.system}, "
        f"kernel {machine.kernel}, cgroups {machine.cgroups}; {', '.join(machine.software)}, "
        f"batch jobs in {machine.batch_language}; load average before the start {machine.load_average:g}; "
        f"perphd at commit {machine.commit}"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else "unknown"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
