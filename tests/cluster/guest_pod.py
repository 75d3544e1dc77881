"""Runs in the guest: sets a pod's slice as the daemon does, one JSON request a line, one JSON answer each.

Needs nothing but Python and systemd there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perphd.domain.allocation import IDLE, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.containers import in_kubernetes, parse_path
from perphd.host.fs import RealFs
from perphd.host.lookup import Lookup
from perphd.host.systemd_bus import BusctlBus
from perphd.host.systemd_dropins import FOLDERS, MARKS
from perphd.host.systemd_fs import refusal, unit_files
from perphd.isolation import Executor, Journal, restore

ROOT = "/sys/fs/cgroup"
FILES = ("cpuset.cpus.effective", "cpu.weight", "cpu.max", "memory.high", "memory.max")
TARGET = Settings(cpu_weight=IDLE, cpu_max_cores=0.5, memory_high_bytes=48 << 20, cpus=CpuSet.of([1]))
FS = RealFs()
HIERARCHIES = discover(FS)
WRITTEN = unit_files(FS, HIERARCHIES, BusctlBus())


def texts(cgroup: str) -> dict[str, str]:
    paths = {name: Path(ROOT + cgroup, name) for name in FILES}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def drop_ins(cgroup: str) -> dict[str, str]:
    """What each drop-in of the pod's slice assigns."""
    unit = os.path.basename(cgroup)
    return {
        path.name.removeprefix("50-").removesuffix(".conf"): line.partition("=")[2]
        for folder in FOLDERS
        for path in Path(folder, f"{unit}.d").glob("*.conf")
        for line in path.read_text().splitlines()
        if line[:1] not in ("", "#", "[")
    }


def shell(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


class Pod:
    """One pod, found by its name."""

    def __init__(self) -> None:
        self._state = Path(tempfile.mkdtemp(prefix="perphd-pod-"))
        self._journal: Journal | None = None
        self._executor: Executor | None = None
        self._clock = itertools.count(0.0, 120.0)
        self.cgroup = ""

    def find(self, name: str) -> dict[str, Any]:
        pods = {pod.name: pod.cgroup for pod in Lookup(FS, HIERARCHIES).pods()}
        self.cgroup = pods.get(name, "")
        path = parse_path(self.cgroup)
        return {
            "cgroup": self.cgroup, "qos": path.qos, "uid": path.pod_uid,
            "in_kubernetes": in_kubernetes(self.cgroup), "files": type(WRITTEN).__name__,
        }  # fmt: skip

    async def apply(self) -> dict[str, Any]:
        """One plan, two minutes after the last by its own clock."""
        if self._executor is None:
            self._journal = Journal(self._state)
            self._executor = Executor(
                WRITTEN, HIERARCHIES, self._journal, refuse=lambda cgroup: refusal(WRITTEN, HIERARCHIES, cgroup),
                deadline_s=60.0, in_thread=False,
            )  # fmt: skip
        specs = [WorkloadSpec("pod", Kind.BATCH, self.cgroup)]
        applied = await self._executor.apply(self._executor.plan({"pod": TARGET}, specs, next(self._clock)))
        return {
            "ok": applied.ok, "failed": str(applied.failed or ""),
            "written": sorted(os.path.basename(write.path) for write in applied.written),
            "conflicts": [str(each) for each in self._executor.conflicts()],
        }  # fmt: skip

    def restore(self) -> dict[str, Any]:
        """As ``perphd restore`` after the daemon has been killed."""
        assert self._executor is not None
        assert self._journal is not None
        self._executor.close()
        self._journal.close()
        self._executor = self._journal = None
        report = restore(FS, self._state)
        return {"complete": report.complete, "report": str(report)}

    def look(self) -> dict[str, Any]:
        marks = sorted(path.name for path in Path(MARKS).glob("*/*"))
        return {"texts": texts(self.cgroup), "drop_ins": drop_ins(self.cgroup), "marks": marks}

    def class_weight(self, weight: int = 0) -> dict[str, Any]:
        """Weight of the pod's class, which kubelet repairs at each of its rounds; set to ``weight`` if given."""
        slice_ = os.path.basename(os.path.dirname(self.cgroup))
        if weight:
            shell("systemctl", "set-property", "--runtime", slice_, f"CPUWeight={weight}")
        return {"weight": Path(ROOT + os.path.dirname(self.cgroup), "cpu.weight").read_text().strip()}

    def reload(self) -> dict[str, Any]:
        shell("systemctl", "daemon-reload")
        return {}


async def main() -> None:
    pod = Pod()
    for line in _requests():
        request = json.loads(line)
        answer = getattr(pod, request.pop("do"))(**request)
        print(json.dumps(await answer if asyncio.iscoroutine(answer) else answer), flush=True)


def _requests() -> Iterator[str]:
    while line := sys.stdin.readline():
        yield line


if __name__ == "__main__":
    asyncio.run(main())
