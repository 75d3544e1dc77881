"""A simulated machine with resctrl mounted, and a clock that moves when somebody sleeps."""

from __future__ import annotations

from perphd.sim.kernel.faces import RawFs
from perphd.sim.kernel.resctrl import MACHINES, ResctrlTree, Threads
from perphd.sim.kernel.vfs import Directory
from rdt import Groups, Limits, Resctrl

ROOT = "/sys/fs/resctrl"


class World:
    """``threads`` 1 and 2, and a process of four: 10 to 13."""

    def __init__(self, machine: str = "captured", options: str | None = None) -> None:
        self.directory = Directory()
        self.threads = Threads(((1,), (2,), (10, 11, 12, 13)))
        self.tree = ResctrlTree(MACHINES[machine], self.directory.make(ROOT), self.threads)
        self.tree.mount(options)
        self.fs = RawFs(self.directory)
        self.writes: list[tuple[str, str]] = []
        self.fs.on_write = lambda path, text: self.writes.append((path.removeprefix(f"{ROOT}/"), text))
        self.slept_s: list[float] = []

    def open(self) -> Resctrl:
        return Resctrl.open(self.fs, ROOT, lock_timeout_s=0.0)

    def groups(self, prefix: str = "perphd", *, limits: Limits | None = None, change_default=False) -> Groups:
        return Groups(
            self.open(),
            prefix,
            limits=limits,
            change_default=change_default,
            sleep=self.sleep,
            clock=lambda: self.tree.now_s,
        )

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.tree.now_s += seconds

    def text(self, path: str) -> str:
        return self.fs.read(f"{ROOT}/{path}").decode()

    def write(self, path: str, text: str) -> None:
        self.fs.write(f"{ROOT}/{path}", text.encode())

    def mkdir(self, path: str) -> None:
        self.fs.mkdir(f"{ROOT}/{path}")

    def tids(self, path: str = "") -> set[int]:
        return set(map(int, self.text(f"{path}/tasks".lstrip("/")).split()))
