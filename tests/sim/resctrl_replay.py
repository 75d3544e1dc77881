"""Replays captured resctrl operations (data/resctrl_operations.toml) on a tree, simulated or real."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel import Directory, RawFs, caller_uid
from perphd.sim.kernel.faces import walk
from perphd.sim.kernel.fuse import serve
from perphd.sim.kernel.proc import add_locks
from perphd.sim.kernel.resctrl import MOUNT_POINT, RdtMachine, ResctrlTree, Threads

TABLE = tomllib.loads((Path(__file__).parent / "data" / "resctrl_operations.toml").read_text())
LONG = "x" * 200
_FIXED = ("info", "mon_data", "mon_groups")
_LIMBO_BYTES = 400_000
Step = dict[str, Any]


class NotExpressible(Exception):
    """This tree has no such operation, or it must not be done to it."""


class OpenRefused(Exception):
    """Already opening the file was refused."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Calls(Protocol):
    """System calls on paths below the mount point."""

    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def rename(self, path: str, to: str) -> None: ...
    def write(self, path: str, data: bytes) -> None: ...
    def read(self, path: str) -> bytes: ...
    def listdir(self, path: str) -> list[str]: ...
    def kind_and_mode(self, path: str) -> str: ...
    def keep(self, path: str) -> Callable[[], bytes]: ...
    def other(self, name: str, path: str) -> None: ...
    def try_lock(self, *, exclusive: bool) -> None: ...
    def as_user(self, uid: int) -> Calls: ...


class InProcess:
    """The simulated tree itself."""

    def __init__(self, fs: RawFs) -> None:
        self._fs = fs

    @staticmethod
    def _path(path: str) -> str:
        return f"{MOUNT_POINT}/{path}".rstrip("/")

    def mkdir(self, path: str) -> None:
        self._fs.mkdir(self._path(path))

    def rmdir(self, path: str) -> None:
        self._fs.rmdir(self._path(path))

    def rename(self, path: str, to: str) -> None:
        self._fs.rename(self._path(path), self._path(to))

    def write(self, path: str, data: bytes) -> None:
        try:
            opened = self._fs.open_for_writing(self._path(path))
        except OSError as exc:
            raise OpenRefused(exc.errno or 0) from exc
        token = caller_uid.set(self._fs.uid)
        try:
            opened.write(data)
        finally:
            caller_uid.reset(token)

    def read(self, path: str) -> bytes:
        return self._fs.read(self._path(path))

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(self._path(path))

    def kind_and_mode(self, path: str) -> str:
        node = walk(self._fs.root, self._path(path))
        return f"{'d' if isinstance(node, Directory) else 'f'} {node.mode:04o}"

    def keep(self, path: str) -> Callable[[], bytes]:
        return self._fs.open(self._path(path)).read

    def other(self, name: str, path: str) -> None:
        raise NotExpressible(f"the in-process face has no {name}")

    def try_lock(self, *, exclusive: bool) -> None:
        try:
            with self._fs.lock(MOUNT_POINT, exclusive=exclusive, timeout_s=0.0):
                pass
        except TimeoutError as exc:
            raise OSError(errno.EAGAIN, "locked") from exc

    def as_user(self, uid: int) -> Calls:
        return InProcess(RawFs(self._fs.root, uid))


class System:
    """A mounted tree: a FUSE mount of the simulated one, or the kernel's."""

    def __init__(self, root: str, *, fuse: bool) -> None:
        self.root, self.fuse = root, fuse

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")

    def mkdir(self, path: str) -> None:
        os.mkdir(self._path(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._path(path))

    def rename(self, path: str, to: str) -> None:
        os.rename(self._path(path), self._path(to))

    def write(self, path: str, data: bytes) -> None:
        if self.fuse and not data:
            raise NotExpressible("FUSE does not hand an empty write on")
        try:
            fd = os.open(self._path(path), os.O_WRONLY)
        except OSError as exc:
            raise OpenRefused(exc.errno or 0) from exc
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        return Path(self._path(path)).read_bytes()

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))

    def kind_and_mode(self, path: str) -> str:
        mode = os.stat(self._path(path)).st_mode
        return f"{'d' if stat.S_ISDIR(mode) else 'f'} {stat.S_IMODE(mode):04o}"

    def keep(self, path: str) -> Callable[[], bytes]:
        fd = os.open(self._path(path), os.O_RDONLY)

        def read() -> bytes:
            try:
                return os.pread(fd, 65536, 0)
            finally:
                os.close(fd)

        return read

    def other(self, name: str, path: str) -> None:
        target = self._path(path)
        if name == "unlink":
            os.unlink(target)
        elif name == "create":
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        elif name == "symlink":
            os.symlink("schemata", target)
        elif name == "chmod":
            before = stat.S_IMODE(os.stat(target).st_mode)
            os.chmod(target, 0o600)
            os.chmod(target, before)
        elif name == "chown":
            os.chown(target, 0, 0)
        elif name == "truncate":
            os.truncate(target, 0)

    def try_lock(self, *, exclusive: bool) -> None:
        with flock(self.root, exclusive=exclusive):
            pass

    def as_user(self, uid: int) -> Calls:
        return _SystemAs(self, uid)


@contextmanager
def flock(path: str, *, exclusive: bool) -> Iterator[None]:
    """Hold flock(2) on a directory; OSError EAGAIN at once if somebody else does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


class _SystemAs(System):
    """The same in the name of somebody else."""

    def __init__(self, system: System, uid: int) -> None:
        super().__init__(system.root, fuse=system.fuse)
        self._uid = uid

    @contextmanager
    def _become(self) -> Iterator[None]:
        os.seteuid(self._uid)
        try:
            yield
        finally:
            os.seteuid(0)

    def mkdir(self, path: str) -> None:
        with self._become():
            super().mkdir(path)

    def write(self, path: str, data: bytes) -> None:
        with self._become():
            super().write(path, data)

    def read(self, path: str) -> bytes:
        with self._become():
            return super().read(path)


class Simulation:
    """A mounted simulated tree with its tasks, and everything that can happen to the machine."""

    def __init__(self, machine: RdtMachine) -> None:
        threads = {"SELF": (900,), "PID": (1000,), "PID2": (1010,), "THREADED": (1100, 1101, 1102, 1103)}
        self._source = Threads([(1,), (2,), *threads.values(), (1200,)], caller=900)
        self._source.end(1200, zombie=True)
        self.names = {name: tids[0] for name, tids in threads.items()} | {"ZOMBIE": 1200, "DEAD": 460}
        self.root = Directory()
        self.tree = ResctrlTree(machine, self.root.make(MOUNT_POINT), self._source)
        self.tree.mount()
        add_locks(self.root, [self.tree.directory])
        self.calls: Calls = InProcess(RawFs(self.root))

    def locks(self) -> str:
        return RawFs(self.root).read("/proc/locks").decode()

    def start_anew(self) -> None:
        """As after a reboot, with nothing left in the caches."""
        if self.tree.mounted:
            self.tree.umount()
        self.tree.set_online(self.tree.machine.cpus)
        self.tree.now_s += 1000
        self.tree.mount()

    def threads_of(self, pid: int) -> list[int]:
        return [pid, pid + 1, pid + 2, pid + 3] if pid == self.names["THREADED"] else [pid]

    def fork(self, pid: int) -> int:
        child = 5000
        self._source.start(child)
        self.tree.forked(pid, child)
        return child

    def proc(self, pid: int) -> str:
        return self.tree.proc_text(pid)

    def happen(self, step: Step) -> None:
        """What a user of the file system does not do through it."""
        tree = self.tree
        if "offline" in step or "online" in step:
            cpus = CpuSet.of(step["offline"] if "offline" in step else step["online"])
            online = CpuSet(tree.online)
            tree.set_online(online - cpus if "offline" in step else online | cpus)
        elif "account" in step:
            held, total, local = step["bytes"]
            tree.account(step["account"], 0, llc_bytes=held, mbm_total_bytes=total, mbm_local_bytes=local)
        elif "wait_s" in step:
            tree.now_s += step["wait_s"]
        elif "occupy" in step:
            for group in tree.registry.walk():
                if group.path.startswith(step["occupy"]):
                    tree.account(group.path, 0, llc_bytes=_LIMBO_BYTES)
        elif "limbo" in step:
            names = [f"mon_groups/limbo{n}" for n in range(step["limbo"])]
            here = InProcess(RawFs(self.root))
            for name in names:
                here.mkdir(name)
                tree.account(name, 0, llc_bytes=_LIMBO_BYTES)
            for name in names:
                here.rmdir(name)
        elif "mount" in step:
            tree.mount(step["mount"])
            if "mounts" in step:
                assert tree.mount_line() == step["mounts"] + "\n"
        elif "umount" in step:
            tree.umount()
        elif "lock" in step:
            assert tree.directory.try_lock(exclusive=step["lock"] == "exclusive", pid=4711)
        elif "unlock" in step:
            tree.directory.unlock(exclusive=step["unlock"] == "exclusive", pid=4711)


class MountedSimulation:
    """The same behind a FUSE mount in a process of its own; what happens to the machine goes there by a pipe."""

    def __init__(self, machine: RdtMachine, folder: str) -> None:
        self._simulation = Simulation(machine)
        self.names = self._simulation.names
        self.threads_of = self._simulation.threads_of
        self.calls: Calls = System(folder, fuse=True)
        self._held = ExitStack()
        fork = multiprocessing.get_context("fork")
        self._pipe, there = fork.Pipe()
        self._server = fork.Process(target=self._serve, args=(folder, there))
        self._server.start()
        there.close()
        assert self._pipe.recv() == "mounted"

    def _serve(self, folder: str, pipe: Connection) -> None:
        gate = threading.RLock()
        threading.Thread(target=self._listen, args=(pipe, gate), daemon=True).start()
        mount_point = walk(self._simulation.root, MOUNT_POINT)
        assert isinstance(mount_point, Directory)
        serve(mount_point, folder, gate, lambda: pipe.send("mounted"))

    def _listen(self, pipe: Connection, gate: threading.RLock) -> None:
        while True:
            method, arguments = pipe.recv()
            with gate:
                try:
                    answer = getattr(self._simulation, method)(*arguments)
                except (AssertionError, OSError) as exc:
                    answer = exc
            pipe.send(answer)

    def _ask(self, method: str, *arguments: object) -> Any:
        self._pipe.send((method, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fork(self, pid: int) -> int:
        return int(self._ask("fork", pid))

    def proc(self, pid: int) -> str:
        return str(self._ask("proc", pid))

    def happen(self, step: Step) -> None:
        self._ask("happen", step)
        if "lock" in step:
            # flock(2) on the mounted folder is this machine's kernel's; the tree behind it is asked about umount.
            assert isinstance(self.calls, System)
            self._held.enter_context(flock(self.calls.root, exclusive=step["lock"] == "exclusive"))
        elif "unlock" in step:
            self._held.close()

    def locks(self) -> str:
        return str(self._ask("locks"))

    def start_anew(self) -> None:
        self._ask("start_anew")

    def close(self) -> None:
        self._server.terminate()
        self._server.join()


_FOUR_THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(flush=True)
time.sleep(600)
"""


FIGURES = ("the figures are chosen here", "how many RMIDs are in limbo depends on what the caches hold")
"""What not even a machine that may be spoilt can be asked."""


class RealKernel:
    """The kernel's own resctrl, with processes of our own.

    Only on a machine that may be ``spoilt`` do CPUs go, is anything mounted, and do others hold locks.
    """

    def __init__(self, *, spoilt: bool = False) -> None:
        self.spoilt = spoilt
        self._held = ExitStack()
        self.calls: Calls = System(MOUNT_POINT, fuse=False)
        self._shell = subprocess.Popen(["/bin/sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threaded = subprocess.Popen([sys.executable, "-c", _FOUR_THREADS], stdout=subprocess.PIPE, text=True)
        assert threaded.stdout is not None
        threaded.stdout.readline()
        zombie = subprocess.Popen(["/bin/true"], text=True)
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        other = subprocess.Popen(["/bin/sleep", "600"], text=True)
        self._started = [self._shell, other, threaded, zombie]
        dead = subprocess.Popen(["/bin/true"])
        dead.wait()
        pids = [process.pid for process in self._started]
        self.names = dict(zip(("PID", "PID2", "THREADED", "ZOMBIE"), pids, strict=True))
        self.names |= {"DEAD": dead.pid, "SELF": os.getpid()}

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def asked(self, reason: str) -> bool:
        """Whether it is asked what other real machines are not, for this reason."""
        return self.spoilt and reason not in FIGURES

    def threads_of(self, pid: int) -> list[int]:
        return sorted(int(tid) for tid in os.listdir(f"/proc/{pid}/task"))

    def fork(self, pid: int) -> int:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write("sleep 60 >/dev/null & echo $!\n")
        self._shell.stdin.flush()
        return int(self._shell.stdout.readline())

    def proc(self, pid: int) -> str:
        return Path(f"/proc/{pid}/cpu_resctrl_groups").read_text()

    def happen(self, step: Step) -> None:
        if not self.spoilt:
            raise NotExpressible("a real machine is left as it is")
        for verb, text in (("offline", "0"), ("online", "1")):
            for cpu in step.get(verb, ()):
                Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(text)
        if "mount" in step:
            _mount(step["mount"])
            if "mounts" in step:
                assert step["mounts"] in Path("/proc/mounts").read_text().splitlines()
        elif "umount" in step:
            _umount()
        elif "wait_s" in step:
            time.sleep(step["wait_s"])
        elif "lock" in step:
            self._held.enter_context(flock(MOUNT_POINT, exclusive=step["lock"] == "exclusive"))
        elif "unlock" in step:
            self._held.close()

    def locks(self) -> str:
        inode = os.stat(MOUNT_POINT).st_ino
        device = os.stat(MOUNT_POINT).st_dev
        where = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        return "".join(line for line in Path("/proc/locks").open() if line.split()[5] == where)

    def start_anew(self) -> None:
        """Mounted plainly, with all CPUs and without groups."""
        for cpu in range(1, os.cpu_count() or 1):
            Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("1")
        with suppress(OSError):
            _umount()
        _mount("")


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(options: str) -> None:
    words = (b"resctrl", MOUNT_POINT.encode(), b"resctrl")
    if _libc.mount(*words, ctypes.c_ulong(0), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount -t resctrl -o {options}")


def _umount() -> None:
    if _libc.umount2(MOUNT_POINT.encode(), 0):
        raise OSError(ctypes.get_errno(), f"umount {MOUNT_POINT}")


World = Simulation | MountedSimulation | RealKernel
_EVENTS = ("offline", "online", "account", "wait_s", "occupy", "limbo", "mount", "umount", "lock", "unlock")
_OTHER = ("unlink", "create", "symlink", "chmod", "chown", "truncate")


class Replay:
    """One section on one tree. ``run`` gives every step with None, or why it could not be expressed."""

    def __init__(self, world: World, newer: bool) -> None:
        self.world, self._newer = world, newer
        self._kept: dict[str, Callable[[], bytes]] = {}
        self._before = "ok"

    def run(self, section: dict[str, Any]) -> Iterator[tuple[Step, str | None]]:
        for group in section.get("given", ()):
            self.world.calls.mkdir(group)
        for step in section["steps"]:
            reason = section.get("simulated") or step.get("simulated")
            if reason is not None and isinstance(self.world, RealKernel) and not self.world.asked(reason):
                yield step, reason
                continue
            try:
                self._step(step)
            except NotExpressible as exc:
                yield step, str(exc)
            except AssertionError as exc:
                raise AssertionError(f"{step}: {exc}") from exc
            else:
                yield step, None

    def _step(self, step: Step) -> None:
        expected = step
        if self._newer and "on_6_12" in step:
            dropped = ("errno", "status", "adds", "keeps", "made", "limbo")
            expected = {k: v for k, v in step.items() if k not in dropped} | step["on_6_12"]
        asked = "ok"
        try:
            self._do(expected)
        except OpenRefused as exc:
            asked = f"open: {errno.errorcode[exc.number]}"
        except OSError as exc:
            asked = errno.errorcode[exc.errno or 0]
        wanted = f"open: {expected['open']}" if "open" in expected else expected.get("errno", "ok")
        assert asked == wanted, f"the kernel answered {wanted}, this tree {asked}"
        self._check(expected)

    def _do(self, step: Step) -> None:
        calls = self.world.calls.as_user(step["uid"]) if "uid" in step else self.world.calls
        for verb in ("mkdir", "rmdir"):
            if verb in step:
                getattr(calls, verb)(self._text(step[verb]))
        if "rename" in step:
            calls.rename(step["rename"], step["to"])
        elif "write" in step:
            calls.write(step["write"], (self._text(step["data"]) + " " * step.get("spaces", 0)).encode())
        elif "mkdir_until_refused" in step:
            self._mkdir_until_refused(step)
        elif "rmdir_all" in step:
            self._rmdir_all(step["rmdir_all"])
        elif "read" in step:
            calls.read(step["read"])
        elif "keep" in step:
            self._kept[step["keep"]] = calls.keep(step["keep"])
        elif "reread" in step:
            self._kept.pop(step["reread"])()
        elif "try_lock" in step:
            calls.try_lock(exclusive=step["try_lock"] == "exclusive")
        for verb in _OTHER:
            if verb in step:
                calls.other(verb, step[verb])
        if any(event in step for event in _EVENTS):
            self.world.happen(step)

    def _check(self, step: Step) -> None:
        calls = self.world.calls
        if step.get("status") == "none":
            self._before = "ok"
        else:
            status = calls.read("info/last_cmd_status").decode().removesuffix("\n")
            wanted = self._status(step)
            assert status == wanted, f"last_cmd_status: {wanted!r} was captured, {status!r} is here"
            self._before = status
        for path, content in step.get("reads", {}).items():
            found = calls.read(path).decode()
            assert found == content + "\n", f"{path}: {content!r} was captured, {found!r} is here"
        if "empty" in step:
            assert calls.read(step["empty"]) == b""
        if "names" in step:
            assert calls.listdir(step["list"]) == step["names"]
        if "locks" in step:
            lines = [" ".join(line.split()[1:4]) for line in self.world.locks().splitlines()]
            assert lines == step["locks"], lines
        whose = int(self._text(step.get("whose", "{PID}")))
        if "where" in step:
            assert self._where(whose) == step["where"], f"{whose} is in {self._where(whose)}"
        if "proc" in step:
            assert self.world.proc(whose) == step["proc"] + "\n"
        if "threads" in step:
            tids = self.world.threads_of(int(self._text(step["threads"])))
            assert sum(step["in"] in self._where(tid) for tid in tids) == step["count"]
        if "fork" in step:
            child = self.world.fork(int(self._text(step["fork"])))
            assert self._where(child) == step["where_child"]

    def _status(self, step: Step) -> str:
        if "keeps" in step:
            return self._before
        if "adds" in step:
            return step["adds"] if self._before == "ok" else f"{self._before}\n{step['adds']}"
        return self._text(step.get("status", "ok"))

    def _text(self, text: str) -> str:
        for name, pid in self.world.names.items():
            text = text.replace("{" + name + "}", str(pid))
        return text.replace("{LONG}", LONG)

    def _mkdir_until_refused(self, step: Step) -> None:
        for made in range(1000):
            try:
                self.world.calls.mkdir(f"{step['mkdir_until_refused']}{made}")
            except OSError:
                assert made == step["made"], f"{step['made']} could be made, here {made}"
                raise

    def _rmdir_all(self, prefix: str) -> None:
        folder, _, start = prefix.rpartition("/")
        for name in self.world.calls.listdir(folder):
            if name.startswith(start) and name[len(start) :].isdigit():
                self.world.calls.rmdir(f"{folder}/{name}".lstrip("/"))

    def _where(self, pid: int) -> list[str]:
        found = []
        for group in self._groups():
            if str(pid) in self.world.calls.read(f"{group}/tasks".lstrip("/")).decode().split():
                found.append(group or "/")
        return found

    def _groups(self) -> Iterator[str]:
        calls = self.world.calls
        for control in ["", *self._directories("")]:
            yield control
            for monitor in calls.listdir(f"{control}/mon_groups".lstrip("/")):
                yield f"{control}/mon_groups/{monitor}".lstrip("/")

    def _directories(self, path: str) -> list[str]:
        calls = self.world.calls
        names = [name for name in calls.listdir(path) if name not in _FIXED]
        return [name for name in names if calls.kind_and_mode(name).startswith("d")]


@contextmanager
def clean_real_kernel() -> Iterator[RealKernel]:
    """The real tree, which must be empty, and is so again afterwards."""
    world = RealKernel()
    made = Replay(world, newer=False)
    try:
        world.calls.write("mode", b"shareable\n")  # changes nothing, and clears last_cmd_status
        yield world
    finally:
        for name in world.calls.listdir("mon_groups"):
            world.calls.rmdir(f"mon_groups/{name}")
        for name in made._directories(""):
            world.calls.rmdir(name)
        world.close()


def main() -> int:
    """Ask this machine's kernel, which may be spoilt, everything. Status 1: it answered otherwise somewhere."""
    world = RealKernel(spoilt=True)
    newer = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)
    wrong = asked = 0
    for section in TABLE["section"]:
        world.start_anew()
        try:
            asked += sum(reason is None for _, reason in Replay(world, newer).run(section))
        except AssertionError as exc:
            wrong += 1
            print(f"{section['name']}: {exc}")
    world.start_anew()
    world.close()
    print(f"{asked} steps asked, {wrong} sections answered otherwise")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
