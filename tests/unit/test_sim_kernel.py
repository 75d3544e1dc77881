"""The simulated cgroup tree as perphd reads and writes it; the captured table itself is replayed in tests/sim."""

from __future__ import annotations

import errno

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import Full, Gone, Invalid, KernelError, ParseError
from perphd.host.cgroup.hierarchy import Layout, discover
from perphd.host.psi import parse_pressure
from perphd.host.topology import read_topology
from perphd.sim.counters import Process
from perphd.sim.kernel import Directory, SimFs
from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.machine import CGROUP_ROOT, Machine, add_proc, add_processors

KID = f"{CGROUP_ROOT}/lab/kid"
OK = 0


class Lab:
    """Two CPUs, one node, a populated group /lab/kid with every controller."""

    def __init__(self, machine: Machine | None = None) -> None:
        machine = machine or Machine(1, 2, 1, memory_bytes=2 << 30)
        root = Directory()
        add_processors(root, machine, lambda: machine.online)
        self.tree = CgroupTree(root.make(CGROUP_ROOT), machine.online, machine.nodes, machine.cpus)
        add_proc(root, machine, "/system.slice/perphd.service", self.tree.root.pressure, lambda: 0.0)
        self.tree.make("/lab/kid").processes.append(Process(284, (284, 290), "sleep"))
        self.tree.find("/lab/kid").processes.append(Process(285, (285,), "sleep"))  # type: ignore[union-attr]
        self.fs = SimFs(root)

    def write(self, path: str, value: str) -> int:
        """The errno of a write (0: it was taken)."""
        try:
            self.fs.write(path if path.startswith("/") else f"{CGROUP_ROOT}/{path}", value.encode())
        except KernelError as exc:
            return exc.errno
        return OK

    def text(self, path: str) -> str:
        return self.fs.read(f"{CGROUP_ROOT}/{path}").decode().removesuffix("\n")


def test_processes_and_subtree_control() -> None:
    lab = Lab()
    lab.tree.make("/lab2")
    assert lab.write("lab2/cgroup.procs", "284\n") == OK
    assert lab.text("lab2/cgroup.procs") == "284"
    assert lab.text("lab2/cgroup.threads") == "284\n290"
    assert lab.text("lab/kid/cgroup.procs") == "285"
    for value, expected in [
        ("284\n285\n", errno.EINVAL),
        ("4194303\n", errno.ESRCH),
        ("-1\n", errno.EINVAL),
        ("abc\n", errno.EINVAL),
        ("", OK),
        ("\n", errno.EINVAL),
        ("99999999999\n", errno.EINVAL),
        ("2\n", errno.EINVAL),
    ]:
        assert lab.write("lab2/cgroup.procs", value) == expected, value
    # Domain controllers and processes do not mix; threaded ones turn the group into something else.
    assert lab.write("lab2/cgroup.subtree_control", "+memory\n") == errno.EBUSY
    assert lab.write("lab2/cgroup.subtree_control", "+cpuset +memory\n") == errno.EBUSY
    assert lab.write("lab2/cgroup.subtree_control", "+cpuset\n") == OK
    assert lab.text("lab2/cgroup.type") == "domain threaded"
    lab.fs.raw.mkdir(f"{CGROUP_ROOT}/lab2/thr")
    assert lab.text("lab2/thr/cgroup.type") == "domain invalid"
    assert lab.write("lab2/thr/cgroup.procs", "284\n") == errno.EOPNOTSUPP
    assert lab.write("lab2/cgroup.subtree_control", "+memory\n") == errno.EOPNOTSUPP
    assert lab.write("lab2/cgroup.subtree_control", "-cpuset\n") == OK
    assert lab.text("lab2/cgroup.type") == "domain"
    for value in ("+foo\n", "cpuset\n", "+pids +foo\n"):
        assert lab.write("lab2/cgroup.subtree_control", value) == errno.EINVAL
    assert lab.text("lab2/cgroup.subtree_control") == ""
    assert lab.write("lab/cgroup.procs", "284\n") == errno.EBUSY
    assert lab.write("cgroup.subtree_control", "-cpuset\n") == errno.EBUSY
    assert lab.write("cgroup.procs", "284\n") == OK
    assert lab.write("lab/kid/cgroup.subtree_control", "+hugetlb\n") == errno.EINVAL


def test_a_controller_that_the_parent_does_not_give_is_enoent() -> None:
    lab = Lab()
    assert lab.write("lab/cgroup.subtree_control", "-cpu\n") == OK
    assert lab.write("lab/kid/cgroup.subtree_control", "+cpu\n") == errno.ENOENT


def test_effective_cpus_follow_the_parent() -> None:
    lab = Lab()
    lab.write("lab/kid/cpuset.cpus", "0-1\n")
    assert lab.write("lab/cpuset.cpus", "0\n") == OK
    assert (lab.text("lab/kid/cpuset.cpus"), lab.text("lab/kid/cpuset.cpus.effective")) == ("0-1", "0")
    assert lab.write("lab/kid/cpuset.cpus", "1\n") == OK  # the parent has only 0
    assert (lab.text("lab/kid/cpuset.cpus"), lab.text("lab/kid/cpuset.cpus.effective")) == ("1", "0")
    assert lab.write("lab/cpuset.cpus", "\n") == errno.ENOSPC
    assert lab.write("lab/cpuset.cpus", "0-1\n") == OK
    assert lab.text("lab/kid/cpuset.cpus.effective") == "1"


def test_an_empty_cpuset_is_refused_only_where_it_would_release_processes() -> None:
    lab = Lab()
    assert lab.write("lab/kid/cpuset.cpus", "\n") == OK  # it was empty already
    lab.tree.make("/lab3")
    assert lab.write("lab3/cpuset.cpus", "1\n") == OK
    assert lab.write("lab3/cpuset.cpus", "\n") == OK  # no process in it
    assert lab.text("lab3/cpuset.cpus.effective") == "0-1"


def test_leaving_idle_forgets_the_weight() -> None:
    lab = Lab()
    lab.write("lab/kid/cpu.weight", "33\n")
    lab.write("lab/kid/cpu.idle", "1\n")
    lab.write("lab/kid/cpu.idle", "0\n")
    assert lab.text("lab/kid/cpu.weight") == "100"


def test_the_root_has_no_knobs() -> None:
    lab = Lab()
    for name in ("cpu.weight", "cpu.max", "cpuset.cpus", "memory.max", "memory.high", "memory.current"):
        assert lab.write(name, "1\n") == errno.ENOENT
    assert lab.text("cpu.stat").splitlines()[3:5] == ["nr_periods 0", "nr_throttled 0"]  # seen on 6.1
    assert lab.write("cpuset.cpus.effective", "0\n") == errno.EINVAL


def test_proc_pressure_drops_the_last_byte_of_a_write() -> None:
    lab = Lab()
    assert lab.write("/proc/pressure/memory", "some 150000 1000000") == errno.EINVAL
    assert lab.write("/proc/pressure/memory", "some 150000 1000000\n") == OK
    parse_pressure(lab.fs.read("/proc/pressure/cpu").decode())


def test_taking_a_controller_away_takes_its_files_and_values() -> None:
    lab = Lab()
    lab.write("lab/kid/cpuset.cpus", "1\n")
    kept = lab.fs.open(f"{KID}/cpuset.cpus")
    assert lab.write("lab/cgroup.subtree_control", "-cpuset\n") == OK
    with pytest.raises(Gone):
        kept.read()
    with pytest.raises(Gone):
        lab.fs.read(f"{KID}/cpuset.cpus")
    lab.write("lab/cgroup.subtree_control", "+cpuset\n")
    assert lab.text("lab/kid/cpuset.cpus") == ""


def test_a_removed_group_is_gone_for_open_files_and_has_another_identity_when_made_again() -> None:
    lab = Lab()
    lab.tree.make("/batch/pi")
    kept = lab.fs.open(f"{CGROUP_ROOT}/batch/pi/cpu.stat")
    before = lab.fs.identity(f"{CGROUP_ROOT}/batch/pi")
    kept.read()
    lab.tree.remove("/batch/pi")
    with pytest.raises(Gone) as caught:
        kept.read()
    assert caught.value.errno == errno.ENODEV
    assert not lab.fs.exists(f"{CGROUP_ROOT}/batch/pi")
    with pytest.raises(Gone):
        lab.fs.listdir(f"{CGROUP_ROOT}/batch/pi")
    lab.tree.make("/batch/pi")
    assert lab.fs.identity(f"{CGROUP_ROOT}/batch/pi") != before


def test_groups_in_use_cannot_be_removed() -> None:
    lab = Lab()
    for path, number in (("/lab", errno.EBUSY), ("/lab/kid", errno.EBUSY), ("/none", errno.ENOENT)):
        with pytest.raises(OSError, match=r".*") as caught:
            lab.tree.remove(path)
        assert caught.value.errno == number


def test_errors_are_the_classes_of_the_domain() -> None:
    lab = Lab()
    with pytest.raises(Invalid, match=r"cpu\.weight"):
        lab.fs.write(f"{KID}/cpu.weight", b"0")
    lab.write("lab/kid/cpuset.cpus", "1")
    with pytest.raises(Full):
        lab.fs.write(f"{KID}/cpuset.cpus", b"\n")
    with pytest.raises(KernelError):
        lab.fs.read(KID)
    file = lab.fs.open(f"{KID}/cpu.weight")
    file.close()
    file.close()
    with pytest.raises(KernelError):
        file.read()


def test_a_file_of_somebody_is_read_with_its_owner_and_no_further_than_asked() -> None:
    lab = Lab()
    path = f"{CGROUP_ROOT}/lab/kid/cgroup.procs"
    lab.fs.raw.chown(path, 1000, 1000)
    assert lab.fs.read_strangers(path, 5) == (1000, b"284\n2")
    with pytest.raises(ParseError):
        lab.fs.read_strangers(f"{CGROUP_ROOT}/lab", 5)
    with pytest.raises(Gone):
        lab.fs.read_strangers("/run/none.pid", 5)


@pytest.mark.parametrize("machine", [Machine(1, 2), Machine(1, 8, 2), Machine(2, 8, 2), Machine(4, 3, 1)])
def test_the_machine_is_read_as_it_is(machine: Machine) -> None:
    lab = Lab(machine)
    assert read_topology(lab.fs) == machine.topology()
    hierarchies = discover(lab.fs)
    assert hierarchies.layout is Layout.V2
    assert {"cpu", "cpuset", "memory", "io"} <= set(hierarchies.by_controller)
    assert machine.topology().online == CpuSet.of(range(machine.cpus))
