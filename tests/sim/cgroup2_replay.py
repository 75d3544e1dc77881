"""Replays captured cgroup v2 operations (data/cgroup2_operations.toml) on a tree, simulated or real."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from perphd.domain.cpuset import CpuSet
from perphd.sim.counters import Process
from perphd.sim.kernel import Directory, RawFs
from perphd.sim.kernel.cgroup2 import CgroupTree, Kernel
from perphd.sim.kernel.fuse import serve
from perphd.sim.machine import CGROUP_ROOT, Machine, add_proc

TABLE = tomllib.loads((Path(__file__).parent / "data" / "cgroup2_operations.toml").read_text())
Step = dict[str, Any]
_CONTROLLER = re.compile(r"(?:.*/)?(cpuset|cpu|io|memory|pids)\.(?!pressure)")


class World(Protocol):
    """A machine to replay on."""

    names: dict[str, int]

    @property
    def calls(self) -> InProcess | System: ...
    def place(self, path: str) -> str | None: ...
    def refusal(self, step: Step) -> str: ...
    def happen(self, step: Step) -> None: ...


class NotExpressible(Exception):
    """This world has no such operation, or it must not be done to it."""


class InProcess:
    """The simulated tree itself, below the root of its host."""

    fuse = False

    def __init__(self, fs: RawFs) -> None:
        self._fs = fs

    def as_user(self, uid: int) -> InProcess:
        return InProcess(RawFs(self._fs.root, uid))

    def open(self, path: str, *, writing: bool) -> tuple[Callable[[], bytes], Callable[[bytes], object]]:
        opened = self._fs.open_for_writing(path) if writing else self._fs.open(path)
        return opened.read, opened.write

    def do(self, operation: str, path: str, to: str) -> None:
        arguments = (path, to) if operation == "rename" else (path,)
        getattr(self._fs, operation)(*arguments)


class System:
    """A mounted tree below ``root``: a FUSE mount of the simulated one, or the kernel's."""

    def __init__(self, root: str, *, fuse: bool) -> None:
        self._root, self.fuse, self._uid = root, fuse, 0

    def as_user(self, uid: int) -> System:
        other = System(self._root, fuse=self.fuse)
        other._uid = uid
        return other

    def open(self, path: str, *, writing: bool) -> tuple[Callable[[], bytes], Callable[[bytes], object]]:
        with _become(self._uid):
            fd = os.open(self._root + path, os.O_WRONLY if writing else os.O_RDONLY)
        file = os.fdopen(fd, "wb" if writing else "rb", buffering=0)
        return lambda: os.pread(file.fileno(), 1 << 16, 0), lambda data: os.write(file.fileno(), data)

    def do(self, operation: str, path: str, to: str) -> None:
        target = self._root + path
        with _become(self._uid):
            if operation == "create":
                os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            elif operation == "rename":
                os.rename(target, self._root + to)
            else:
                getattr(os, operation)(target)


class _become:  # noqa: N801
    def __init__(self, uid: int) -> None:
        self._uid = uid

    def __enter__(self) -> None:
        if self._uid:
            os.seteuid(self._uid)

    def __exit__(self, *_: object) -> None:
        if self._uid:
            os.seteuid(0)


class Simulation:
    """Two CPUs, one disk, systemd's slices, and processes that nobody has put anywhere yet."""

    def __init__(self, kernel: Kernel) -> None:
        machine = Machine(1, 2, 1, memory_bytes=2 << 30)
        self.root = Directory()
        self.tree = CgroupTree(
            self.root.make(CGROUP_ROOT), machine.online, machine.nodes, machine.cpus, kernel
        )
        add_proc(self.root, machine, "/", self.tree.root.pressure, lambda: 0.0)
        shell = self.tree.make("/system.slice/ssh.service")
        # What a host has in its page cache: some of it can be reclaimed.
        for group in shell.ancestry():
            group.memory.file_bytes = 14e6
        shell.processes += [Process(pid, (pid,), "sleep") for pid in (284, 285, 286)]
        self.tree.kernel_pids.add(17)
        self.tree.zombies.add(300)
        self.names = {"A": 284, "B": 285, "KWORKER": 17, "ZOMBIE": 300, "DEAD": 301}
        self.calls: InProcess | System = InProcess(RawFs(self.root))
        self.top = CGROUP_ROOT

    def happen(self, step: Step) -> None:
        """What a user of the files does not do through them."""
        if "offline" in step:
            self.tree.set_online(self.tree.online - CpuSet.parse(step["offline"]))
        elif "online" in step:
            self.tree.set_online(self.tree.online | CpuSet.parse(step["online"]))
        else:
            group = self.tree.find(step["settle"])
            assert group is not None
            self.tree.move(286, group)
            for above in group.ancestry():
                above.memory.anon_bytes += step["bytes"]

    def refusal(self, step: Step) -> str:
        """Why a step is not asked here; empty if it is."""
        return ""

    def place(self, path: str) -> str | None:
        """Where a path of the table lies; None: it is not ours to touch."""
        return path if path.startswith("/") else f"{self.top}/{path}"


class MountedSimulation(Simulation):
    """The same behind a FUSE mount in a process of its own; what happens to the machine goes there by a pipe."""

    def __init__(self, kernel: Kernel, folder: str) -> None:
        super().__init__(kernel)
        fork = multiprocessing.get_context("fork")
        self._pipe, there = fork.Pipe()
        self._server = fork.Process(target=self._serve, args=(folder, there))
        self._server.start()
        there.close()
        assert self._pipe.recv() == "mounted"
        self.calls = System(folder, fuse=True)

    def _serve(self, folder: str, pipe: Connection) -> None:
        gate = threading.RLock()

        def listen() -> None:
            while True:
                step = pipe.recv()
                with gate:
                    Simulation.happen(self, step)
                pipe.send("done")

        threading.Thread(target=listen, daemon=True).start()
        serve(self.root, folder, gate, lambda: pipe.send("mounted"))

    def happen(self, step: Step) -> None:
        self._pipe.send(step)
        assert self._pipe.recv() == "done"

    def refusal(self, step: Step) -> str:
        if step.get("data") == "":
            return "FUSE does not hand an empty write on"
        if "create" in step and "uid" in step:
            return "as in the kernel, only root gets that far"
        return ""

    def close(self) -> None:
        self._server.terminate()
        self._server.join()


class RealKernel:
    """This kernel's cgroup2 mount, with groups and processes of our own; what belongs to others is left alone."""

    def __init__(self, mount: str) -> None:
        self.calls = System("", fuse=False)
        self.top, self._prefix = mount, f"perphd-test-{os.getpid()}-"
        self._started = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
        zombie = subprocess.Popen(["/bin/true"])
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        dead = subprocess.Popen(["/bin/true"])
        dead.wait()
        a, b = (process.pid for process in self._started)
        self._started.append(zombie)
        self.names = {"A": a, "B": b, "ZOMBIE": zombie.pid, "DEAD": dead.pid}
        self._given = set(Path(mount, "cgroup.subtree_control").read_text().split())
        self._kernel_threads = (
            Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n"
        )

    def place(self, path: str) -> str | None:
        """Where a path of the table lies here; None: it is not ours."""
        if path.startswith("lab"):
            return f"{self.top}/{self._prefix}{path}"
        return f"{self.top}/{path}" if path == "cgroup.procs" else None

    def refusal(self, step: Step) -> str:
        path = next(
            (step[key] for key in (*_CALLS, "write", "keep", "reread", "trigger") if key in step), None
        )
        if path is None or self.place(path) is None:
            return "a real machine is left as it is"
        needs = set(step.get("needs", ()))
        if found := _CONTROLLER.match(path):
            needs.add(found[1])
        if path.endswith("subtree_control"):
            needs |= set(re.findall(r"[+-](\w+)", step["data"])) - {"foo"}
        if needs - self._given:
            return f"the root does not give {', '.join(sorted(needs - self._given))}"
        data = step.get("data", "")
        if path.endswith(".pressure") and not _has_capability(_SYS_RESOURCE):
            return "without CAP_SYS_RESOURCE newer kernels take windows of whole 2 s only"
        if "KWORKER" in data or (data == "2\n" and not self._kernel_threads):
            return "kernel threads are not looked for"
        return ""

    def happen(self, step: Step) -> None:
        raise NotExpressible("a real machine is left as it is")

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for group in sorted(Path(self.top).glob(f"{self._prefix}lab*/*/"), reverse=True):
            group.rmdir()
        for group in Path(self.top).glob(f"{self._prefix}lab*/"):
            group.rmdir()


def _has_capability(number: int) -> bool:
    found = re.search(r"CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text())
    return found is not None and bool(int(found[1], 16) >> number & 1)


_SYS_RESOURCE = 24
_CALLS = ("mkdir", "rmdir", "rename", "unlink", "create")
_EVENTS = ("offline", "online", "settle")


class Replay:
    """The whole table on one tree. ``run`` gives every step with None, or why it could not be expressed."""

    def __init__(self, world: World, newer: bool = False, table: dict[str, Any] = TABLE) -> None:
        self._world, self._newer, self._table = world, newer, table
        self._kept: dict[str, Callable[[], bytes]] = {}

    def run(self) -> Iterator[tuple[str, Step, str | None]]:
        for section in self._table["section"]:
            for step in section["steps"]:
                reason = self._world.refusal(step)
                if self._newer and section.get("only_6_1"):
                    reason = "6.12 answers otherwise throughout"
                if not reason:
                    try:
                        self._step(step)
                    except AssertionError as exc:
                        raise AssertionError(f"{section['name']}: {step}: {exc}") from exc
                yield section["name"], step, reason or None

    def _step(self, step: Step) -> None:
        expected = step
        if self._newer and "on_6_12" in step:
            expected = {k: v for k, v in step.items() if k not in ("errno", "reads")} | step["on_6_12"]
        wanted = f"open: {step['open']}" if "open" in step else expected.get("errno", "ok")
        assert self._asked(step) == wanted, f"answered {self._asked_last}, the kernel {wanted}"
        for path, captured in expected.get("reads", {}).items():
            place = self._place(path.removesuffix("*"))
            if place is None:
                continue
            found = self._text(place)
            text = self._named(captured)
            pattern = re.escape(text).replace("N", "[0-9]+") if path.endswith("*") else re.escape(text)
            assert re.fullmatch(pattern, found), f"{path} reads {found!r}, the kernel's {text!r}"

    def _asked(self, step: Step) -> str:
        self._asked_last = self._do(step)
        return self._asked_last

    def _do(self, step: Step) -> str:
        calls = self._world.calls.as_user(step["uid"]) if "uid" in step else self._world.calls
        if any(event in step for event in _EVENTS):
            self._world.happen(step)
            return "ok"
        for name in _CALLS:
            if name in step:
                path, to = self._sure(step[name]), self._sure(step["to"]) if "to" in step else ""
                return _answer(partial(calls.do, name, path, to))
        if "keep" in step:
            self._kept[step["keep"]] = calls.open(self._sure(step["keep"]), writing=False)[0]
            return _answer(self._kept[step["keep"]])
        if "reread" in step:
            return _answer(self._kept[step["reread"]])
        path, data = step.get("write") or step["trigger"], self._named(step["data"]).encode()
        try:
            write = calls.open(self._sure(path), writing=True)[1]
        except OSError as exc:
            return f"open: {errno.errorcode[exc.errno or 0]}"
        first = _answer(lambda: write(data))
        if "again" in step:
            again = _answer(lambda: write(data))
            assert again == step["again"], f"the second write: {again}"
        return first

    def _sure(self, path: str) -> str:
        place = self._place(path)
        assert place is not None
        return place

    def _place(self, path: str) -> str | None:
        return self._world.place(path)

    def _named(self, text: str) -> str:
        for name, pid in self._world.names.items():
            text = text.replace(f"{{{name}}}", str(pid))
        return text

    def _text(self, path: str) -> str:
        try:
            return self._world.calls.open(path, writing=False)[0]().decode().removesuffix("\n")
        except OSError as exc:
            return f"<{errno.errorcode[exc.errno or 0]}>"


def _answer(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as exc:
        name = errno.errorcode[exc.errno or 0]
        return "EOPNOTSUPP" if name == "ENOTSUP" else name
    return "ok"
