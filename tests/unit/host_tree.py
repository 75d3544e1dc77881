"""Small kernel trees on disk: a mapping from absolute path to content, and CPUs described by what matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perphd.domain.cpuset import CpuSet
from perphd.host.fs import RealFs

CPU = "/sys/devices/system/cpu"


def write_tree(root: Path, files: Mapping[str, str]) -> RealFs:
    """Write each file below ``root`` (a content ending in no newline gets one); directories end in ``/``."""
    for path, content in files.items():
        target = root / path.lstrip("/")
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if content.endswith("\n") else content + "\n")
    return RealFs(root)


@dataclass(frozen=True)
class Cpu:
    """One online CPU as sysfs describes it. ``l3``: (id or None, shared CPUs, size), or None for no cache."""

    number: int
    socket: int = 0
    core: int = 0
    siblings: str = ""
    l3: tuple[int | None, str, str] | None = None


def cpu_files(
    cpus: list[Cpu],
    *,
    present: str = "",
    isolated: str = "",
    memory_kb: int = 1000,
    nodes: Mapping[int, tuple[str, int]] | None = None,
) -> dict[str, str]:
    """The files of a host with these CPUs online; ``nodes``: node -> (cpulist, memory in kB)."""
    online = str(CpuSet.of(cpu.number for cpu in cpus))
    files = {
        f"{CPU}/online": online,
        f"{CPU}/present": present or online,
        f"{CPU}/possible": "0-127",
        f"{CPU}/isolated": isolated,
        f"{CPU}/cpufreq/": "",
        "/proc/meminfo": f"MemTotal:       {memory_kb} kB\nMemFree:  1 kB",
    }
    for cpu in cpus:
        base = f"{CPU}/cpu{cpu.number}"
        files[f"{base}/topology/physical_package_id"] = str(cpu.socket)
        files[f"{base}/topology/core_id"] = str(cpu.core)
        files[f"{base}/topology/thread_siblings_list"] = cpu.siblings or str(cpu.number)
        if cpu.l3 is not None:
            number, shared, size = cpu.l3
            files[f"{base}/cache/index0/level"] = "1"
            files[f"{base}/cache/index0/id"] = str(cpu.number)
            files[f"{base}/cache/index3/level"] = "3"
            files[f"{base}/cache/index3/shared_cpu_list"] = shared
            files[f"{base}/cache/index3/size"] = size
            files[f"{base}/cache/uevent"] = ""
            if number is not None:
                files[f"{base}/cache/index3/id"] = str(number)
    for node, (cpulist, kilobytes) in (nodes or {}).items():
        files[f"/sys/devices/system/node/node{node}/cpulist"] = cpulist
        files[f"/sys/devices/system/node/node{node}/meminfo"] = (
            f"\nNode {node} MemTotal:       {kilobytes} kB\nNode {node} MemFree:         7 kB"
        )
    return files
