"""A model of a machine whose bandwidth levels can be measured: streams in virtual time, and its files in sysfs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rdt import Broken, RealFs
from tests.unit.rdt_world import World

GB = 1e9
IDLE = {0: ((0,), (1,)), 1: ((2,), (3,))}


def delivered(level: int, cores: int) -> float:
    """A machine whose cap binds at 50 only: 10 GB/s a core and 15 in all, above; then in proportion."""
    return min(10 * cores, 15) * GB * min(1.0, level / 50)


class Model:
    """Streams on the simulated machine: while anybody sleeps they move what their group's level lets them."""

    def __init__(self, world: World, *, count: bool = True) -> None:
        self.world, self.count = world, count
        self.running: ModelStream | None = None
        self.others = 1.0
        self.fail_after = math.inf
        self.started = 0

    def stream(self, cpus: Sequence[int], seconds: float) -> ModelStream:
        self.started += 1
        self.running = ModelStream(self, cpus)
        return self.running

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)
        stream = self.running
        if stream is None:
            return
        tree = self.world.tree
        domain = stream.cpus[0] // 2
        closid, rmid = tree.ids_of(stream.tids[0], stream.cpus[0])
        moved = delivered(tree.value("MB", domain, closid), len(stream.cpus)) * seconds * self.others
        stream.bytes += moved
        if self.count:
            tree.account_rmid(rmid, domain, mbm_total_bytes=1.5 * moved)


class ModelStream:
    def __init__(self, model: Model, cpus: Sequence[int]) -> None:
        self._model, self.cpus = model, tuple(cpus)
        self.tids = tuple(1000 + cpu for cpu in cpus)
        self.bytes = 0.0
        for tid in self.tids:
            model.world.threads.start(tid)

    def moved_bytes(self) -> float:
        self._model.fail_after -= 1
        if self._model.fail_after < 0:
            raise Broken("process 1000", doing="streaming in", reason="it ended: -9")
        return self.bytes

    def __enter__(self) -> ModelStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.running = None
        for tid in self.tids:
            self._model.world.tree.exited(tid)
            self._model.world.threads.end(tid)


def sysfs(root: Path, stat: str) -> RealFs:
    """Four CPUs; 0 and 2 are threads of one core, CPU 3 is offline; L3 caches 0 and 16."""
    cpus = root / "sys/devices/system/cpu"
    for cpu, (cache, siblings) in enumerate([(0, "0,2"), (16, "1,3"), (0, "0,2"), (16, "1,3")]):
        for index, level in ((0, "1"), (3, "3")):
            place = cpus / f"cpu{cpu}/cache/index{index}"
            place.mkdir(parents=True)
            for name, text in (("level", level), ("id", str(cache)), ("size", "1024K")):
                (place / name).write_text(f"{text}\n")
        (cpus / f"cpu{cpu}/topology").mkdir()
        (cpus / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    (cpus / "online").write_text("0-2\n")
    (root / "proc").mkdir()
    (root / "proc/stat").write_text(stat)
    (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A Model @ 2 GHz\n")
    return RealFs(root)
