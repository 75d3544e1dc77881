"""The simulated host's resctrl as a machine's: mount options, CPUs that go and come, other programs' locks."""

from __future__ import annotations

import errno

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.sim.host import SimHost
from perphd.sim.kernel.proc import foreign_lock
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch, Lra, Workload

ROOT = "/sys/fs/resctrl"
TWO_SOCKETS = Machine(sockets=2, cores_per_socket=2, llc_ways=11)


def host(resctrl: bool | str = True) -> SimHost:
    works: list[Workload] = [Lra("db", "/lra/db", rate_per_s=100), Batch("pi", "/batch/pi", threads=2)]
    return SimHost(works, machine=TWO_SOCKETS, resctrl=resctrl)


def text(here: SimHost, path: str) -> str:
    return here.fs.read(path).decode()


def test_a_host_with_cdp_shows_data_before_code_and_its_physics_goes_on() -> None:
    here = host("cdp")
    assert text(here, f"{ROOT}/schemata") == ("    MB:0=100;1=100\nL3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n")
    assert "resctrl rw,relatime,cdp 0 0" in text(here, "/proc/self/mounts")
    here.advance(2.0)
    wide = text(here, f"{ROOT}/mon_data/mon_L3_00/llc_occupancy")
    here.fs.raw.mkdir(f"{ROOT}/g1")
    for tid in text(here, "/sys/fs/cgroup/batch/pi/cgroup.threads").split():
        here.fs.write(f"{ROOT}/g1/tasks", tid.encode())
    here.fs.write(f"{ROOT}/g1/schemata", b"L3DATA:0=1;1=1\n")
    here.advance(6.0)
    narrow = text(here, f"{ROOT}/g1/mon_data/mon_L3_00/llc_occupancy")
    assert int(narrow) <= TWO_SOCKETS.way_bytes < int(wide), (
        "one way of the data's mask is all that it can fill"
    )


def test_a_host_whose_bandwidth_is_given_in_mib_per_second() -> None:
    here = host("mba_MBps")
    assert text(here, f"{ROOT}/schemata").startswith("    MB:0=4294967295;1=4294967295\n")
    here.advance(2.0)
    free = int(text(here, f"{ROOT}/mon_data/mon_L3_00/mbm_total_bytes"))
    assert free > 0


def test_the_mount_table_follows_what_is_mounted() -> None:
    here = host()
    tree = here.resctrl
    assert tree is not None
    tree.umount()
    assert "resctrl" not in text(here, "/proc/self/mounts")
    assert here.fs.listdir(ROOT) == []
    here.advance(1.0)
    tree.mount("cdp,mba_MBps")
    assert "resctrl rw,relatime,cdp,mba_MBps 0 0" in text(here, "/proc/self/mounts")


def test_a_socket_that_goes_takes_its_domain_along_and_comes_back_with_defaults() -> None:
    here = host()
    here.fs.raw.mkdir(f"{ROOT}/g1")
    here.fs.write(f"{ROOT}/g1/schemata", b"MB:0=20;1=30\nL3:0=3;1=30\n")
    here.set_online(CpuSet.of([0, 1]))
    assert text(here, f"{ROOT}/g1/schemata") == "    MB:0= 20\n    L3:0=003\n"
    assert here.fs.listdir(f"{ROOT}/g1/mon_data") == ["mon_L3_00"]
    assert text(here, "/sys/devices/system/cpu/online") == "0-1\n"
    assert text(here, "/sys/devices/system/cpu/cpu2/online") == "0\n"
    assert not here.fs.exists("/sys/devices/system/cpu/cpu2/cache")
    assert text(here, "/sys/fs/cgroup/cpuset.cpus.effective") == "0-1\n"
    here.advance(2.0)
    here.set_online(CpuSet.of([0, 1, 2]))
    assert text(here, f"{ROOT}/g1/schemata") == "    MB:0= 20;1=100\n    L3:0=003;1=7ff\n"
    assert text(here, "/sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list") == "2\n"
    here.set_online(TWO_SOCKETS.online)
    assert text(here, "/sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list") == "2-3\n"


def test_another_programs_lock_keeps_out_lockers_alone_and_names_its_holder() -> None:
    here = host()
    tree = here.resctrl
    assert tree is not None
    place = tree.directory
    with foreign_lock(here.fs.root, place) as pid:
        _, inode = here.fs.identity(ROOT)
        assert text(here, "/proc/locks") == f"1: FLOCK  ADVISORY  WRITE {pid} 00:1d:{inode} 0 EOF\n"
        assert text(here, f"/proc/{pid}/comm") == "flock\n"
        with (
            pytest.raises(TimeoutError),
            here.fs.raw.lock(ROOT, exclusive=False, timeout_s=0.0),
        ):
            pass
        here.fs.raw.mkdir(f"{ROOT}/g1")
        here.fs.write(f"{ROOT}/g1/schemata", b"L3:0=1\n")
        here.fs.raw.rmdir(f"{ROOT}/g1")
        with pytest.raises(OSError) as busy:
            tree.umount()
        assert busy.value.errno == errno.EBUSY
    assert text(here, "/proc/locks") == ""
    assert not here.fs.exists(f"/proc/{pid}")
    with (
        here.fs.raw.lock(ROOT, exclusive=True, timeout_s=0.0),
        pytest.raises(BlockingIOError),
        foreign_lock(here.fs.root, place, exclusive=False),
    ):
        pass
    with (
        foreign_lock(here.fs.root, place, exclusive=False),
        here.fs.raw.lock(ROOT, exclusive=False, timeout_s=0.0),
    ):
        assert [line.split()[3] for line in text(here, "/proc/locks").splitlines()] == ["READ", "READ"]
    tree.umount()
