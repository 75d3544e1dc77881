"""Rules of cgroup v2 that the captured table does not reach: threads, limits, delegation, killing, partitions."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.host.fs import KernelFs
from perphd.sim.counters import Process
from perphd.sim.kernel import Directory, RawFs, SimFs, formats
from perphd.sim.kernel.cgroup2 import CgroupTree, Kernel, SimCgroup
from rdt.fs import Fs

NOBODY = 65534


class Lab:
    """A hierarchy mounted at the root of a tree of its own; a process of three threads in /app."""

    def __init__(self, kernel: Kernel | None = None, cpus: int = 4) -> None:
        self.root = Directory()
        self.tree = CgroupTree(self.root, CpuSet((1 << cpus) - 1), CpuSet(1), cpus, kernel)
        self.tree.make("/app").processes.append(Process(100, (100, 101, 102), "app"))
        self.fs = RawFs(self.root)

    def text(self, path: str) -> str:
        return self.fs.read(path).decode().removesuffix("\n")

    def write(self, path: str, text: str) -> None:
        self.fs.write(path, text.encode())


def refusal(action: Callable[[], object]) -> int:
    """The errno of an action (0: it was done)."""
    try:
        action()
    except OSError as exc:
        return exc.errno or 0
    return 0


def test_one_tree_has_both_faces() -> None:
    root = Directory()
    raw: Fs = RawFs(root)
    kernel: KernelFs = SimFs(root)
    root.add("file", "text\n")
    assert raw.read("/file") == kernel.read("/file") == b"text\n"
    assert raw.identity("/file") == kernel.identity("/file")


def test_threads_of_a_process_in_different_groups() -> None:
    lab = Lab()
    lab.fs.mkdir("/app/io")
    lab.fs.mkdir("/app/work")
    assert (
        refusal(lambda: lab.write("/app/io/cgroup.threads", "101")) == errno.EOPNOTSUPP
    )  # no threaded group yet
    for name in ("io", "work"):
        lab.write(f"/app/{name}/cgroup.type", "threaded\n")
    assert lab.text("/app/cgroup.type") == "domain threaded"
    lab.write("/app/io/cgroup.threads", "101")
    lab.write("/app/work/cgroup.threads", "102")
    assert [lab.text(f"/app/{part}cgroup.threads") for part in ("", "io/", "work/")] == ["100", "101", "102"]
    assert lab.text("/app/cgroup.procs") == "100"
    assert refusal(lambda: lab.fs.read("/app/io/cgroup.procs")) == errno.EOPNOTSUPP
    assert lab.text("/app/io/cgroup.events") == "populated 1\nfrozen 0"
    assert refusal(lambda: lab.fs.rmdir("/app/io")) == errno.EBUSY
    # Only threaded controllers go down there, and none of the domain ones can be given any more.
    assert refusal(lambda: lab.write("/app/cgroup.subtree_control", "+memory")) == errno.EOPNOTSUPP
    lab.write("/app/cgroup.subtree_control", "+cpu")
    assert "cpu.weight" in lab.fs.listdir("/app/io")
    lab.tree.make("/other")
    assert refusal(lambda: lab.write("/other/cgroup.threads", "101")) == errno.EOPNOTSUPP
    lab.write("/other/cgroup.procs", "100")
    assert lab.text("/other/cgroup.threads").split() == ["100", "101", "102"]
    lab.fs.rmdir("/app/io")


def test_a_group_in_use_cannot_become_threaded() -> None:
    lab = Lab()
    lab.fs.mkdir("/app/x")
    lab.write("/app/x/cgroup.type", "threaded")
    lab.tree.make("/domain/kid").processes.append(Process(200, (200,), "x"))
    assert refusal(lambda: lab.write("/domain/kid/cgroup.type", "threaded")) == errno.EOPNOTSUPP
    assert refusal(lambda: lab.write("/app/x/cgroup.type", "domain")) == errno.EINVAL
    lab.write("/app/x/cgroup.type", "threaded")  # already is: fine


def test_depth_and_number_of_groups_are_limited() -> None:
    lab = Lab()
    lab.write("/app/cgroup.max.depth", "1")
    lab.write("/cgroup.max.descendants", "3")
    lab.fs.mkdir("/app/a")
    assert refusal(lambda: lab.fs.mkdir("/app/a/b")) == errno.EAGAIN
    lab.write("/app/cgroup.max.depth", "max")
    lab.fs.mkdir("/app/a/b")
    assert refusal(lambda: lab.fs.mkdir("/c")) == errno.EAGAIN
    assert lab.text("/cgroup.stat") == "nr_descendants 3\nnr_dying_descendants 0"
    assert refusal(lambda: lab.write("/app/cgroup.max.depth", "x")) == errno.EINVAL
    assert refusal(lambda: lab.fs.mkdir("/" + "x" * 256)) == errno.ENAMETOOLONG


def test_freezing_holds_what_lies_below_and_killing_empties_it() -> None:
    lab = Lab()
    inner = lab.tree.make("/app2/inner")
    inner.processes.append(Process(300, (300,), "x"))
    lab.write("/app2/cgroup.freeze", "1")
    held = inner.frozen
    assert held
    assert lab.text("/app2/inner/cgroup.freeze") == "0"
    assert lab.text("/app2/inner/cgroup.events") == "populated 1\nfrozen 1"
    lab.write("/app2/cgroup.freeze", "0")
    assert not inner.frozen
    killed: list[int] = []

    def kill(group: SimCgroup, process: Process) -> None:
        killed.append(process.pid)
        group.processes.remove(process)

    lab.tree.on_kill = kill
    lab.write("/app2/cgroup.kill", "1")
    assert (killed, lab.text("/app2/cgroup.events")) == ([300], "populated 0\nfrozen 0")


def test_delegation_gives_what_lies_below_and_no_more() -> None:
    lab = Lab()
    theirs = RawFs(lab.root, NOBODY)
    lab.tree.make("/user")
    for path in ("/user", "/user/cgroup.procs", "/user/cgroup.subtree_control", "/user/cgroup.threads"):
        lab.fs.chown(path, NOBODY, NOBODY)
    theirs.mkdir("/user/a")
    theirs.mkdir("/user/b")
    assert theirs.read("/user/a/cgroup.procs") == b""
    lab.write("/user/a/cgroup.procs", "100")
    theirs.write("/user/b/cgroup.procs", b"100")
    assert refusal(lambda: theirs.write("/user/cpu.weight", b"5")) == errno.EACCES
    assert refusal(lambda: theirs.mkdir("/mine")) == errno.EACCES
    assert refusal(lambda: theirs.rmdir("/user")) == errno.EACCES
    lab.write("/app/cgroup.procs", "100")
    # Bringing a process in from outside takes rights on the group above both.
    assert refusal(lambda: theirs.write("/user/a/cgroup.procs", b"100")) == errno.EACCES


def test_events_of_a_removed_group_count_on_above() -> None:
    lab = Lab()
    group = lab.tree.make("/app3/inner")
    group.memory.events["oom_kill"] += 2
    assert "oom_kill 2" in lab.text("/app3/memory.events")
    assert "oom_kill 0" in lab.text("/app3/memory.events.local")
    lab.fs.rmdir("/app3/inner")
    assert "oom_kill 2" in lab.text("/app3/memory.events")


def test_the_peak_is_kept_whoever_looks() -> None:
    lab = Lab()
    group = lab.tree.find("/app")
    assert group is not None
    group.memory.anon_bytes = 1e6
    group.memory.anon_bytes = 4096.0
    assert lab.text("/app/memory.peak") == str(1_000_000 // 4096 * 4096)


def test_memory_reclaim_takes_page_cache_below() -> None:
    lab = Lab()
    group = lab.tree.make("/app4/inner")
    for above in group.ancestry():
        above.memory.file_bytes += 10 << 20
    lab.write("/app4/memory.reclaim", "4M")
    assert group.memory.file_bytes == 6 << 20
    assert refusal(lambda: lab.write("/app4/memory.reclaim", "1G")) == errno.EAGAIN
    assert (group.memory.file_bytes, lab.tree.root.memory.file_bytes) == (0, 0)


def test_io_latency_where_the_kernel_has_it() -> None:
    lab = Lab(Kernel(io_latency=True))
    lab.write("/app/io.latency", "254:0 target=5000")
    assert lab.text("/app/io.latency") == "254:0 target=5000"
    assert refusal(lambda: lab.write("/app/io.latency", "254:0 goal=1")) == errno.EINVAL
    assert refusal(lambda: Lab().fs.read("/app/io.latency")) == errno.ENOENT


def test_an_unprivileged_trigger_of_newer_kernels_watches_whole_2_s() -> None:
    lab = Lab(Kernel(version=(6, 12)))
    lab.fs.chown("/app/cpu.pressure", NOBODY, NOBODY)
    theirs = RawFs(lab.root, NOBODY)
    theirs.write("/app/cpu.pressure", b"some 150000 2000000")
    assert refusal(lambda: theirs.write("/app/cpu.pressure", b"some 150000 1000000")) == errno.EINVAL
    lab.write("/app/cpu.pressure", "some 100 1000")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("all", "0-7"),
        ("N", "7"),
        ("4-N", "4-7"),
        ("0-7:1/2", "0,2,4,6"),
        ("0-7:2/4", "0-1,4-5"),
        ("", ""),
        (" 1, 3\t5", "1,3,5"),
    ],
)
def test_lists_as_the_kernel_reads_them(text: str, cpus: str) -> None:
    assert str(formats.parse_list(text, 8)) == cpus


@pytest.mark.parametrize("text", ["1-0", "0-7:3/2", "0-7:1/0", "1:1/2", "all-3", "0x1", "-", "1.5"])
def test_lists_that_the_kernel_refuses(text: str) -> None:
    assert refusal(lambda: formats.parse_list(text, 8)) == errno.EINVAL


def test_a_nested_partition_falls_with_its_parent() -> None:
    lab = Lab()
    lab.tree.make("/p/q")
    lab.write("/p/cpuset.cpus", "1-3")
    lab.write("/p/cpuset.cpus.partition", "root")
    lab.write("/p/q/cpuset.cpus", "2-3")
    lab.write("/p/q/cpuset.cpus.partition", "isolated")
    assert [lab.text(f"/{at}cpuset.cpus.effective") for at in ("", "p/", "p/q/", "app/")] == [
        "0",
        "1",
        "2-3",
        "0",
    ]
    lab.write("/p/cpuset.cpus.partition", "member")
    assert lab.text("/p/q/cpuset.cpus.partition") == "isolated invalid (Parent is not a partition root)"
    assert [lab.text(f"/{at}cpuset.cpus.effective") for at in ("", "p/", "app/")] == ["0-3", "1-3", "0-3"]


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["cpus", "partition"]),
        st.sampled_from(["root", "isolated", "member"]),
        st.integers(1, 15),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(_STEPS)
def test_valid_partitions_never_share_a_cpu(steps: list[tuple[str, str, str, int]]) -> None:
    """Of siblings, while no CPU comes or goes: a partition may ask for more than its parent has, as on 6.1."""
    lab = Lab()
    lab.tree.make("/a")
    lab.tree.make("/b/c")
    for name, knob, state, mask in steps:
        if knob == "cpus":
            lab.write(f"/{name}/cpuset.cpus", f"{CpuSet(mask)}\n")
        else:
            lab.write(f"/{name}/cpuset.cpus.partition", state)
    groups = [group for group in lab.tree.root.walk() if group.cpuset is not None]
    valid = [g for g in groups if g.cpuset is not None and g.cpuset.is_partition]
    for nth, one in enumerate(valid):
        assert one.effective_cpus <= lab.tree.online
        for other in valid[:nth]:
            assert not one.effective_cpus & other.effective_cpus, [
                lab.text(f"{g.path}/cpuset.cpus") for g in valid[1:]
            ]
