"""The hosts on which faults are tried, one for each writer: what is wanted there, and what must hold at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from perphd.domain.allocation import IDLE, IoLimit, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import Hierarchies, discover
from perphd.host.egress_bpf import Pin, key_of
from perphd.host.egress_fs import EgressFs, with_egress
from perphd.host.fs import KernelFs
from perphd.host.systemd_fs import UnitFs
from perphd.host.systemd_properties import Property
from perphd.host.tc import HtbClass, Qdisc
from perphd.isolation import Executor, Journal, RestoreReport, restore
from perphd.sim.host import SimHost
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import Batch, Lra
from tests.unit.faults_fs import FaultyFs, Gate
from tests.unit.isolation_kernel import FakeKernel
from tests.unit.isolation_systemd import FakeSystemd, no_drop_ins
from tests.unit.network_fakes import FakePrograms, FakeTc

BOOT = "this-boot"
WRITERS = ("cgroup-v1", "cgroup-v2", "systemd", "resctrl", "egress")
_CPUS = CpuSet.of(range(4))


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory, where there is room for one."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(otherwise)
    with TemporaryDirectory(prefix="perphd-test-faults-", dir=memory) as made:
        yield Path(made)


@dataclass
class World:
    """One host. ``targets``: two wanted states one after the other, then all is given back.

    ``texts``: every settable file, for comparing; ``vanish`` and ``appear``: a batch cgroup goes and comes (again).
    """

    writer: str
    inner: KernelFs
    specs: tuple[WorkloadSpec, ...]
    targets: tuple[Mapping[str, Settings], ...]
    texts: Callable[[], dict[str, str]]
    vanish: Callable[[], None]
    appear: Callable[[], object]
    gate: Gate = field(default_factory=Gate)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.before = self.texts()
        self.fs = FaultyFs(self.inner, self.gate)
        self.share_before = self.lra_cores()

    @property
    def hierarchies(self) -> Hierarchies:
        return discover(self.inner)

    def executor(self, journal: Journal) -> Executor:
        """A new process: it knows nothing but the journal."""
        return Executor(self.files(), self.hierarchies, journal, in_thread=False, clock=lambda: self.now_s)

    def files(self, restoring: bool = False) -> KernelFs:
        """The files as the daemon, or ``perphd restore``, has them: behind the gate, whoever stands before them."""
        return self.fs

    def restore(self, state: Path, force: bool = False) -> RestoreReport:
        """As ``perphd restore`` in a process of its own."""
        self.gate.heal()
        return restore(self.files(restoring=True), state, force, boot_id=BOOT)

    # -- what must hold --------------------------------------------------------------------------------------------

    def differing(self) -> dict[str, tuple[str, str]]:
        """Files that are not as they were, with then and now; a v2 list that has all of its parent's is as it was."""
        after = self.texts()
        found = {p: (text, after.get(p, "")) for p, text in self.before.items() if after.get(p) != text}
        made = {path: ("", text) for path, text in after.items() if path not in self.before}
        equal = {
            path
            for path, (then, now) in (found | made).items()
            if path.endswith(("cpuset.cpus", "cpuset.mems"))
            and not then.strip()
            and now.strip() in ("", self._whole(path))
        }
        return {
            path: pair
            for path, pair in (found | made).items()
            if path not in equal and not _is_default(path, pair)
        }

    def _whole(self, path: str) -> str:
        return "0-3" if path.endswith("cpuset.cpus") else "0-1"

    def lra_cores(self) -> float:
        """Cores that the LRA has at least when everybody wants all: by CPU sets, weights, freezing and ceilings."""
        texts = self.texts()
        lra, *batch = self.specs
        mine = _claim(texts, lra.cgroup)
        theirs = [_claim(texts, spec.cgroup) for spec in batch]
        return sum(
            mine.weight / (mine.weight + sum(one.weight for one in theirs if cpu in one.cpus))
            for cpu in mine.cpus
        )

    def assert_lra_not_worse(self) -> None:
        """No LRA has less than it had before perphd came: fewer cores, a lower protection, a ceiling, a freeze."""
        assert self.lra_cores() >= self.share_before - 1e-9, self.differing()
        after = self.texts()
        lra = self.specs[0].cgroup
        for path, text in self.before.items():
            if f"{lra}/" in path and path.endswith(("memory.low", "memory.min")):
                assert int(after[path]) >= int(text), path
            elif f"{lra}/" in path and not path.endswith(
                ("cpuset.cpus", "cpuset.mems", "weight", "shares", "idle")
            ):
                assert after[path] == text, path


@dataclass(frozen=True)
class _Claim:
    cpus: CpuSet
    weight: float


def _claim(texts: Mapping[str, str], cgroup: str) -> _Claim:
    """What a group may use, read from its files; a frozen group uses nothing."""
    found = {path.rpartition("/")[2]: text.strip() for path, text in texts.items() if _is_in(path, cgroup)}
    cpus = CpuSet.parse(found.get("cpuset.cpus", "")) or _CPUS
    weight = float(found.get("cpu.weight", 0) or 100) if "cpu.weight" in found else 100.0
    if "cpu.shares" in found:
        weight = int(found["cpu.shares"]) / 10.24
    if found.get("cpu.idle") == "1":
        weight = 0.3
    if found.get("cgroup.freeze") == "1" or found.get("freezer.state") in ("FROZEN", "FREEZING"):
        weight = 0.0
    return _Claim(cpus, max(weight, 1e-9))


def _is_in(path: str, cgroup: str) -> bool:
    return path.rpartition("/")[0].endswith(cgroup)


def _is_default(path: str, pair: tuple[str, str]) -> bool:
    """A file that a controller brought with it says what its absence said."""
    name = path.rpartition("/")[2]
    defaults = {"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000", "io.max": "", "io.latency": ""}
    defaults |= {"io.weight": "default 100", "io.bfq.weight": "default 100"}
    return pair[0] == "" and name in defaults and pair[1].strip() == defaults[name]


def _memory(spec: str) -> Settings:
    low = 64 << 20
    return (
        Settings(cpus=CpuSet.of([0, 1]), memory_low_bytes=low, memory_min_bytes=low // 2)
        if spec == "v2"
        else Settings(cpus=CpuSet.of([0, 1]))
    )


def cgroups(writer: str) -> World:
    """cgroup v1 or v2 files, written directly: every knob that there is, an LRA with cores of its own."""
    layout = writer.removeprefix("cgroup-")
    kernel = FakeKernel(layout)
    for group in ("/db", "/pi", "/pi/kid"):
        kernel.mkdir(group)
    specs = (WorkloadSpec("db", Kind.LRA, "/db"), WorkloadSpec("pi", Kind.BATCH, "/pi"))
    every = Settings(
        cpus=CpuSet.of([2, 3]),
        mems=CpuSet.of([0]),
        cpu_weight=IDLE,
        cpu_max_cores=0.5,
        io_max=(IoLimit("254:0", read_bytes=1 << 20),),
        io_weight=20,
        frozen=True,
    )
    if layout == "v2":
        every = _with(
            every, memory_high_bytes=1 << 30, memory_max_bytes=4 << 30, io_latency_us=(("254:0", 75_000),)
        )
        kernel.use("/sys/fs/cgroup/pi", 2 << 30, 1 << 30)  # so much that some is to be reclaimed
        kernel.directories["/sys/fs/cgroup/pi"].files["memory.reclaim"] = ""
    milder = _with(every, cpus=CpuSet.of([1, 3]), cpu_weight=7)
    targets = ({"db": _memory(layout), "pi": every}, {"pi": milder})

    def appear() -> None:
        for group in ("/pi", "/pi/kid"):
            kernel.mkdir(group)

    return World(
        writer,
        kernel,
        specs,
        targets,
        kernel.texts,
        lambda: kernel.rmdir("/pi"),
        appear,
    )


def _with(settings: Settings, **changed: object) -> Settings:
    return replace(settings, **changed)  # type: ignore[arg-type]


class _SystemdWorld(World):
    systemd: FakeSystemd

    def files(self, restoring: bool = False) -> KernelFs:
        # Faults come between perphd and the kernel's files, and between perphd and the bus.
        return UnitFs(
            self.fs,
            self.systemd.kernel.hierarchies,
            _GatedBus(self),
            sleep=lambda s: None,
            drop_ins=no_drop_ins(self.fs),
        )


@dataclass
class _GatedBus:
    world: _SystemdWorld

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        said = " ".join(item.name for item in properties)
        with self._passing(f"{unit} {said}"):
            self.world.systemd.set_properties(unit, tuple(properties))

    def freeze(self, unit: str, frozen: bool) -> None:
        with self._passing(f"{unit} freeze={frozen}"):
            self.world.systemd.freeze(unit, frozen)

    def close(self) -> None:
        self.world.systemd.close()

    def _passing(self, what: str) -> AbstractContextManager[None]:
        return self.world.fs._passing("write", f"D-Bus {what}")


def systemd() -> World:
    """Units, changed through systemd's run-time properties."""
    manager = FakeSystemd()
    for unit in ("db.service", "pi.service"):
        manager.start(unit)
    specs = (
        WorkloadSpec("db", Kind.LRA, "/system.slice/db.service"),
        WorkloadSpec("pi", Kind.BATCH, "/system.slice/pi.service"),
    )
    every = Settings(
        cpus=CpuSet.of([2, 3]),
        mems=CpuSet.of([0]),
        cpu_weight=IDLE,
        cpu_max_cores=0.5,
        memory_high_bytes=1 << 30,
        io_max=(IoLimit("254:0", read_bytes=1 << 20),),
        frozen=True,
    )
    lra = Settings(cpus=CpuSet.of([0, 1]), memory_low_bytes=64 << 20)
    targets = ({"db": lra, "pi": every}, {"pi": _with(every, cpus=CpuSet.of([1, 3]), cpu_weight=7)})
    world = _SystemdWorld(
        "systemd",
        manager.kernel,
        specs,
        targets,
        manager.kernel.texts,
        lambda: manager.stop("pi.service"),
        lambda: manager.start("pi.service"),
    )
    world.systemd = manager
    return world


class Link:
    """Traffic control and the programs of a network device, as one kernel has them; they outlive processes."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.tc, self.programs = FakeTc(), _KernelsPrograms(kernel)

    def goes(self) -> None:
        """The device is taken away: with its qdisc and classes."""
        self.tc.roots.pop("eth0", None)
        self.tc.ceilings.pop("eth0", None)

    def comes(self) -> None:
        """It is there again, with the kernel's own qdisc."""
        self.tc.roots["eth0"] = ("fq_codel", 0)

    def is_taken(self) -> None:
        """Somebody puts a qdisc of his own in the place of whatever is there."""
        self.goes()
        self.tc.roots["eth0"] = ("tbf", 5)

    def texts(self) -> dict[str, str]:
        found = {f"tc {name}": f"{kind} {major:x}" for name, (kind, major) in self.tc.roots.items()}
        found |= {f"tc {name} classes": str(classes) for name, classes in self.tc.ceilings.items()}
        return found | {f"bpf {pin.key}": str(pin.minor) for pin in self.programs.pins()}


class _KernelsPrograms(FakePrograms):
    """Attached to the groups of a ``FakeKernel``, and gone with them; their pins stay."""

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__()
        self._kernel = kernel

    def attach(self, key: str, directory: str, inode: int, major: int) -> Pin:
        self.inodes[directory] = self._kernel.identity(directory)[1]
        return super().attach(key, directory, inode, major)

    def cgroup_id(self, pin: Pin) -> int:
        inode = super().cgroup_id(pin)
        return inode if any(one.inode == inode for one in self._kernel.directories.values()) else 0


@dataclass
class _GatedLink:
    """Every call of netlink and of bpf(2) by one process passes the gate, as the files do."""

    world: EgressWorld

    def _passing(self, kind: str, where: str, what: str) -> AbstractContextManager[None]:
        return self.world.fs._passing(kind, where, what)

    # -- tc: where files answer EACCES, netlink answers EPERM

    def qdiscs(self) -> tuple[Qdisc, ...]:
        with self._passing("read", "tc", "qdiscs"):
            return self.world.link.tc.qdiscs()

    def classes(self, device: str) -> tuple[HtbClass, ...]:
        with self._passing("read", f"tc {device}", "classes"):
            return self.world.link.tc.classes(device)

    def add_root(self, device: str) -> None:
        with self._passing("write", f"tc {device}", "add root"):
            self.world.link.tc.add_root(device)

    def delete_root(self, device: str) -> None:
        with self._passing("write", f"tc {device}", "delete root"):
            self.world.link.tc.delete_root(device)

    def set_class(self, device: str, minor: int, ceil_bytes: int, *, exists: bool) -> None:
        with self._passing("write", f"tc {device}", f"class {minor:x} {ceil_bytes}"):
            self.world.link.tc.set_class(device, minor, ceil_bytes, exists=exists)

    def delete_class(self, device: str, minor: int) -> None:
        with self._passing("write", f"tc {device}", f"delete class {minor:x}"):
            self.world.link.tc.delete_class(device, minor)

    def close(self) -> None:
        pass

    # -- programs

    def refusal(self) -> str:
        return self.world.link.programs.refusal()

    def were_used(self) -> bool:
        return self.world.link.programs.were_used()

    def pins(self) -> tuple[Pin, ...]:
        with self._passing("read", "bpf", "pins"):
            return self.world.link.programs.pins()

    def cgroup_id(self, pin: Pin) -> int:
        with self._passing("read", f"bpf {pin.key}", "cgroup"):
            return self.world.link.programs.cgroup_id(pin)

    def attach(self, key: str, directory: str, inode: int, major: int) -> Pin:
        with self._passing("write", f"bpf {key}", "attach"):
            return self.world.link.programs.attach(key, directory, inode, major)

    def detach(self, pin: Pin) -> None:
        with self._passing("write", f"bpf {pin.key}", "detach"):
            self.world.link.programs.detach(pin)


class EgressWorld(World):
    link: Link

    @property
    def hierarchies(self) -> Hierarchies:
        return with_egress(discover(self.inner))

    def files(self, restoring: bool = False) -> KernelFs:
        gated = _GatedLink(self)
        named = () if restoring else ("eth0",)
        return EgressFs(self.fs, discover(self.inner), named, tc=lambda: gated, programs=gated)

    def assert_lra_not_worse(self) -> None:
        super().assert_lra_not_worse()
        lra = key_of(self.specs[0].cgroup)
        assert lra not in {pin.key for pin in self.link.programs.pins()}, (
            "an LRA's packets pass through no class"
        )


def egress() -> World:
    """Ceilings of what batch may send, with a cgroup knob beside them."""
    kernel = FakeKernel("v2")
    for group in ("/db", "/pi", "/sort"):
        kernel.mkdir(group)
    link = Link(kernel)
    specs = (
        WorkloadSpec("db", Kind.LRA, "/db"),
        *(WorkloadSpec(name, Kind.BATCH, f"/{name}") for name in ("pi", "sort")),
    )
    slow = Settings(cpu_weight=10, egress_max=(("eth0", 1_000_000),))
    faster = _with(slow, egress_max=(("eth0", 3_000_000),))
    world = EgressWorld(
        "egress",
        kernel,
        specs,
        ({"pi": slow, "sort": faster}, {"pi": faster}),
        lambda: kernel.texts() | link.texts(),
        lambda: kernel.rmdir("/pi"),
        lambda: kernel.mkdir("/pi"),
    )
    world.link = link
    return world


def resctrl() -> World:
    """Cache ways and bandwidth, with a cgroup knob beside them, on the simulated host's kernel trees."""
    work = (
        Lra("db", "/lra/db", rate_per_s=100),
        Batch("pi", "/batch/pi", threads=4),
        Batch("sort", "/batch/sort"),
    )
    host = SimHost(work, machine=Machine(1, 4), resctrl=True)
    specs = tuple(WorkloadSpec(w.name, Kind.LRA if w.name == "db" else Kind.BATCH, w.cgroup) for w in work)
    narrow = Settings(llc_masks=((0, 0x3),), mba_pct=((0, 40),), cpu_weight=10)
    wider = _with(narrow, llc_masks=((0, 0xF),))
    knobs = ("cpu.weight", "cpu.idle", "cpuset.cpus", "memory.low", "memory.high")

    def texts() -> dict[str, str]:
        found = {
            path: host.fs.read(path).decode()
            for spec in specs
            for path in (f"{CGROUP_ROOT}{spec.cgroup}/{knob}" for knob in knobs)
            if host.fs.exists(path)
        }
        root = "/sys/fs/resctrl"
        if not host.fs.exists(root):
            return found
        for name in host.fs.subdirectories(root):
            if name not in ("info", "mon_data", "mon_groups"):
                found[f"{root}/{name}"] = host.fs.read(f"{root}/{name}/schemata").decode()
        found[f"{root}/schemata"] = host.fs.read(f"{root}/schemata").decode()
        return found

    def vanish() -> None:
        host._stop("sort")
        host.cgroups.remove("/batch/sort")

    targets = ({"pi": narrow, "sort": narrow}, {"pi": narrow, "sort": wider})
    return World("resctrl", host.fs, specs, targets, texts, vanish, lambda: host._start("sort"))


def world(writer: str) -> World:
    """The host of this writer."""
    makers = {"systemd": systemd, "resctrl": resctrl, "egress": egress}
    return makers[writer]() if writer in makers else cgroups(writer)
