"""Recommendations as text for systemd, Kubernetes and YARN. This module applies nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perphd.domain.reading import Reading, Unavailable
from perphd.sizing.shaper import HIGH_MARGIN

MIB: Final = 1 << 20
_UNIT: Final = re.compile(r"[A-Za-z0-9:_.@\\-]+\.(service|scope|slice)")
_CLEAN: Final = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True, slots=True)
class PrintedAmounts:
    """Recommended reservation of one workload. ``cgroup``: path of its control group, empty if unknown;
    ``notes`` become comments.
    """

    workload: str
    cgroup: str
    cpu_cores: Reading
    memory_bytes: Reading
    notes: tuple[str, ...] = ()


def systemd(found: PrintedAmounts) -> str:
    """A systemd drop-in: a CPU quota, memory that is not reclaimed, and the size from which the group is throttled.

    There is no MemoryMax, because the kernel kills a group that exceeds it.
    """
    unit = found.cgroup.rpartition("/")[2]
    known = _UNIT.fullmatch(unit)
    kind = known[1].capitalize() if known else "Service"
    folder = f"/etc/systemd/system/{unit if known else 'UNIT.service'}.d"
    lines = [f"# {_label(found)}: {folder}/50-size.conf", *_comments(found), f"[{kind}]"]
    if isinstance(found.cpu_cores, Unavailable):
        lines.append(_missing("CPUQuota", found.cpu_cores))
    else:
        lines.append(f"CPUQuota={max(1, math.ceil(round(found.cpu_cores * 100, 6)))}%")
    if isinstance(found.memory_bytes, Unavailable):
        lines.append(_missing("MemoryLow", found.memory_bytes))
    else:
        high = found.memory_bytes * (1 + HIGH_MARGIN)
        lines += [f"MemoryLow={_mib(found.memory_bytes)}M", f"MemoryHigh={_mib(high)}M"]
    return "\n".join(lines)


def kubernetes(found: PrintedAmounts) -> str:
    """A strategic merge patch with resource requests; limits are unchanged."""
    lines = [
        f"# {_label(found)}: kubectl patch deployment NAME --patch-file FILE",
        *_comments(found),
        "spec:",
        "  template:",
        "    spec:",
        "      containers:",
        "      - name: CONTAINER",
        "        resources:",
        "          requests:",
    ]
    indent = " " * 12
    if isinstance(found.cpu_cores, Unavailable):
        lines.append(indent + _missing("cpu", found.cpu_cores))
    else:
        lines.append(f"{indent}cpu: {max(1, math.ceil(round(found.cpu_cores * 1000, 6)))}m")
    if isinstance(found.memory_bytes, Unavailable):
        lines.append(indent + _missing("memory", found.memory_bytes))
    else:
        lines.append(f"{indent}memory: {_mib(found.memory_bytes)}Mi")
    return "\n".join(lines)


def yarn(found: PrintedAmounts) -> str:
    """The resource of one container in YARN's names: whole MiB and whole cores."""
    lines = [f"# {_label(found)}: the resource of one container", *_comments(found)]
    if isinstance(found.memory_bytes, Unavailable):
        lines.append(_missing("memory-mb", found.memory_bytes))
    else:
        lines.append(f"memory-mb={_mib(found.memory_bytes)}")
    if isinstance(found.cpu_cores, Unavailable):
        lines.append(_missing("vcores", found.cpu_cores))
    else:
        lines.append(f"vcores={max(1, math.ceil(round(found.cpu_cores, 6)))}")
    return "\n".join(lines)


FORMATS: Final = {"systemd": systemd, "kubernetes": kubernetes, "yarn": yarn}
"""Formatters by the names that commands use."""


def printed(form: str, workloads: Sequence[PrintedAmounts]) -> str:
    """All workloads in one format; Kubernetes patches are separate YAML documents."""
    return ("\n---\n" if form == "kubernetes" else "\n\n").join(FORMATS[form](found) for found in workloads)


def _label(found: PrintedAmounts) -> str:
    return _CLEAN.sub("?", found.workload)


def _comments(found: PrintedAmounts) -> list[str]:
    return [f"# {_CLEAN.sub('?', note)}" for note in found.notes]


def _missing(key: str, why: Unavailable) -> str:
    return f"# {key}: {_CLEAN.sub('?', why.reason)}"


def _mib(size_bytes: float) -> int:
    return max(1, math.ceil(round(size_bytes / MIB, 6)))
