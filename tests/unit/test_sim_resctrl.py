"""The simulated resctrl: machines of every kind, rules that the capture does not show, faults on request."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel import Directory, RawFs
from perphd.sim.kernel.resctrl import (
    LINUX_6_1,
    LINUX_6_12,
    MACHINES,
    MOUNT_POINT,
    Fault,
    Interference,
    Operation,
    RdtMachine,
    ResctrlTree,
    Threads,
)
from perphd.sim.kernel.resctrl.numbers import format_cpu_mask, parse_cpu_mask, signed_int, unsigned
from perphd.sim.kernel.resctrl.status import CommandStatus


class Host:
    """A mounted machine, and what a user types."""

    def __init__(self, machine: RdtMachine | str, options: str | None = None) -> None:
        self.threads = Threads([(1,), (2,), (10, 11, 12), (20,)])
        self.fs = RawFs(root := Directory())
        machine = MACHINES[machine] if isinstance(machine, str) else machine
        self.tree = ResctrlTree(machine, root.make(MOUNT_POINT), self.threads)
        self.tree.mount(options)

    def read(self, path: str) -> str:
        return self.fs.read(f"{MOUNT_POINT}/{path}").decode()

    def write(self, path: str, text: str) -> None:
        self.fs.write(f"{MOUNT_POINT}/{path}", text.encode())

    def refuses(self, path: str, text: str, number: int = errno.EINVAL) -> str:
        with pytest.raises(OSError) as told:
            self.write(path, text)
        assert told.value.errno == number
        return self.read("info/last_cmd_status").rstrip("\n")

    def mkdir(self, path: str) -> None:
        self.fs.mkdir(f"{MOUNT_POINT}/{path}")

    def rmdir(self, path: str) -> None:
        self.fs.rmdir(f"{MOUNT_POINT}/{path}")

    def mkdir_refused(self, path: str) -> int | None:
        with pytest.raises(OSError) as told:
            self.mkdir(path)
        return told.value.errno

    def names(self, path: str = "") -> list[str]:
        return self.fs.listdir(f"{MOUNT_POINT}/{path}".rstrip("/"))


# -- machines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_mounts_and_is_empty_again_after_umount(name: str) -> None:
    host = Host(name)
    assert MACHINES[name].source
    assert host.read("info/last_cmd_status") == "ok\n"
    assert host.tree.mount_line().startswith("resctrl /sys/fs/resctrl resctrl rw,relatime")
    if MACHINES[name].can_allocate:
        host.mkdir("g")
        assert host.read("g/schemata") == host.read("schemata")
        host.write("g/schemata", host.read("schemata"))
        host.write("g/tasks", "10\n")
    host.tree.umount()
    assert host.names() == []
    host.tree.mount()
    assert host.read("cpus_list") == f"{MACHINES[name].cpus}\n"
    assert host.tree.membership.ids(10) == (0, 0)


@pytest.mark.parametrize("name", MACHINES)
def test_control_groups_are_limited_by_the_scarcest_resource(name: str) -> None:
    host = Host(name)
    folders = [name for name in host.names("info") if name not in ("L3_MON", "last_cmd_status")]
    counts = [int(host.read(f"info/{folder}/num_closids")) for folder in folders]
    if not counts:
        assert host.mkdir_refused("g") == errno.EPERM
        return
    for number in range(min(counts) - 1):
        host.mkdir(f"g{number}")
    assert host.mkdir_refused("more") == errno.ENOSPC
    assert host.read("info/last_cmd_status") == "Out of CLOSIDs\n"


def test_values_are_padded_to_the_widest_resource_until_linux_stopped_padding() -> None:
    machine = MACHINES["sparse-ids"]
    assert Host(machine).read("schemata") == "    MB:0=  100;8=  100\n    L3:0=fffff;8=fffff\n"
    host = Host("unpadded")
    host.write("schemata", "L3:8=3\n")
    assert host.read("schemata") == "    MB:0=100;8=100\n    L3:0=fffff;8=3\n"


def test_amd_counts_bandwidth_in_absolute_units_and_takes_masks_with_holes() -> None:
    host = Host("amd")
    assert [line.split(":")[0].strip() for line in host.read("schemata").splitlines()] == ["SMBA", "MB", "L3"]
    host.write("schemata", "MB:1=16\nSMBA:8=64\nL3:9=a5a5\n")
    assert "    MB:0=2048;1=  16;8=2048;9=2048\n" in host.read("schemata")
    assert "  SMBA:0=2048;1=2048;8=  64;9=2048\n" in host.read("schemata")
    assert "    L3:0=ffff;1=ffff;8=ffff;9=a5a5\n" in host.read("schemata")
    assert host.refuses("schemata", "MB:0=2049\n") == "MB value 2049 out of range [0,2048]"
    assert host.names("info/MB") == ["bandwidth_gran", "delay_linear", "min_bandwidth", "num_closids"]
    with pytest.raises(OSError, match="Invalid"):
        Host("amd", "mba_MBps")


def test_amd_events_can_be_configured_and_then_begin_anew() -> None:
    host = Host("amd")
    assert "mbm_total_bytes_config" in host.read("info/L3_MON/mon_features").split()
    host.tree.account("", 1, mbm_total_bytes=6400, mbm_local_bytes=640)
    host.write("info/L3_MON/mbm_total_bytes_config", "1=0x33\n")
    assert host.read("info/L3_MON/mbm_total_bytes_config") == "0=0x7f;1=0x33;8=0x7f;9=0x7f\n"
    assert host.read("mon_data/mon_L3_01/mbm_total_bytes") == "Unavailable\n"
    assert host.read("mon_data/mon_L3_01/mbm_total_bytes") == "0\n"
    assert host.refuses("info/L3_MON/mbm_total_bytes_config", "1=0x80\n").startswith("Invalid event conf")
    assert host.refuses("info/L3_MON/mbm_total_bytes_config", "2=0x33\n") == "ok"


def test_haswell_wants_two_bits() -> None:
    host = Host("four-closids")
    assert host.refuses("schemata", "L3:0=1\n") == "Need at least 2 bits in the mask"
    assert host.names("mon_data/mon_L3_00") == ["llc_occupancy"]


def test_l2_only_as_in_the_kernel_documentation() -> None:
    host = Host("l2-only")
    host.mkdir("p0")
    host.write("p0/schemata", "L2:0=0x3;1=0x3\n")
    assert host.refuses("p0/mode", "exclusive\n") == "Schemata overlaps"
    host.write("schemata", "L2:0=0xfc;1=0xfc\n")
    host.write("p0/mode", "exclusive\n")
    assert host.read("p0/size") == "L2:0=262144;1=262144\n"
    host.mkdir("p1")
    assert host.read("p1/schemata") == "L2:0=fc;1=fc\n"
    assert host.read("info/L2/bit_usage") == "0=SSSSSSEE;1=SSSSSSEE\n"
    assert host.refuses("p1/schemata", "L2:0=0x1;1=0x1\n") == "Overlaps with exclusive group"


def test_mb_only_cannot_be_exclusive() -> None:
    host = Host("mb-only")
    host.mkdir("g")
    assert host.refuses("g/mode", "exclusive\n") == "Cannot be exclusive without CAT/CDP"
    assert "mon_data" not in host.names("g")


def test_monitoring_only_has_monitor_groups_in_the_root() -> None:
    host = Host("monitoring-only")
    assert host.names("info") == ["L3_MON", "last_cmd_status"]
    assert (host.read("schemata"), host.read("mode"), host.read("tasks")) == ("", "shareable\n", "")
    host.mkdir("mon_groups/m")
    host.write("mon_groups/m/tasks", "10\n")
    assert host.read("mon_groups/m/tasks") == "10\n"


def test_sub_numa_nodes_are_told_apart_and_summed() -> None:
    host = Host("snc")
    assert host.read("size").splitlines()[1] == "    L3:0=31457280;1=31457280"
    for node, held in ((2, 1 << 20), (3, 1 << 21)):
        host.tree.account("", node, llc_bytes=held)
    assert host.read("mon_data/mon_L3_01/llc_occupancy") == f"{3 << 20}\n"
    assert host.read("mon_data/mon_L3_01/mon_sub_L3_03/llc_occupancy") == f"{1 << 21}\n"
    assert host.read("mon_data/mon_L3_00/llc_occupancy") == "0\n"
    assert host.tree.monitor is not None
    host.tree.monitor.set_condition(1, "llc_occupancy", "0", of_nodes=False)
    assert host.read("mon_data/mon_L3_01/llc_occupancy") == "0\n"
    assert host.read("mon_data/mon_L3_01/mon_sub_L3_03/llc_occupancy") == f"{1 << 21}\n"


def test_exclusive_under_cdp_looks_at_code_and_data() -> None:
    host = Host("cdp")
    host.write("schemata", "L3DATA:0=f0;1=f0\nL3CODE:0=f0;1=f0\n")
    host.mkdir("a")
    host.write("a/schemata", "L3DATA:0=3;1=3\nL3CODE:0=c;1=c\n")
    host.write("a/mode", "exclusive\n")
    host.mkdir("b")
    assert host.read("b/schemata").splitlines()[1:] == ["L3DATA:0=7f0;1=7f0", "L3CODE:0=7f0;1=7f0"]
    assert host.refuses("b/schemata", "L3DATA:0=c\n") == "Overlaps with exclusive group"
    assert host.refuses("b/mode", "pseudo-locksetup\n") == "CDP enabled"


def test_the_software_controller_takes_values_at_once() -> None:
    host = Host("mba-mbps")
    assert host.refuses("schemata", "MB:0=1000\nL3:0=0\n") == "Mask out of range"
    assert host.read("schemata").startswith("    MB:0=1000;1=4294967295\n")
    host.write("schemata", "MB:0=7;0=8\n")
    assert host.read("schemata").startswith("    MB:0=  8;")


def test_debug_shows_identifiers_where_the_kernel_knows_it() -> None:
    host = Host("captured-6.12", "debug")
    host.mkdir("g")
    host.mkdir("g/mon_groups/m")
    ids = (host.read("g/ctrl_hw_id"), host.read("g/mon_hw_id"), host.read("g/mon_groups/m/mon_hw_id"))
    assert ids == ("1\n", "1\n", "2\n")
    assert host.tree.mount_line() == "resctrl /sys/fs/resctrl resctrl rw,relatime,debug 0 0\n"
    with pytest.raises(OSError, match="Invalid"):
        Host("captured", "debug")


def test_a_cache_without_room_makes_no_group() -> None:
    host = Host(replace(MACHINES["l2-only"]))
    host.write("schemata", "L2:0=80;1=80\n")
    host.mkdir("a")
    host.write("a/schemata", "L2:0=7f;1=7f\n")
    host.write("a/mode", "exclusive\n")
    host.write("mode", "exclusive\n")
    assert host.mkdir_refused("b") == errno.ENOSPC
    assert host.read("info/last_cmd_status") == "No space on L2:0\n"
    host.write("mode", "shareable\n")
    host.mkdir("b")


# -- groups, tasks, CPUs ----------------------------------------------------------------------------------------


def test_a_thread_takes_its_own_classes_before_those_of_its_cpu() -> None:
    host = Host("captured")
    for path in ("a", "b", "b/mon_groups/m", "mon_groups/r"):
        host.mkdir(path)
    host.write("a/tasks", "10\n")
    host.write("b/cpus_list", "2-3\n")
    host.write("b/mon_groups/m/cpus_list", "3\n")
    host.write("mon_groups/r/tasks", "20\n")
    tree, find = host.tree, host.tree.registry.find
    assert tree.ids_of(10, 3) == (find("a").closid, find("a").rmid)
    assert tree.ids_of(11, 2) == (find("b").closid, find("b").rmid)
    assert tree.ids_of(11, 3) == (find("b").closid, find("b/mon_groups/m").rmid)
    assert tree.ids_of(11, 0) == (0, 0)
    assert tree.ids_of(20, 2) == (find("b").closid, find("mon_groups/r").rmid)
    host.write("b/schemata", "L3:0=3\nMB:1=20\n")
    assert (tree.value("L3", 0, find("b").closid), tree.value("MB", 1, find("b").closid)) == (3, 20)


def test_children_follow_and_numbers_come_back_clean() -> None:
    host = Host("captured")
    host.mkdir("a")
    host.write("a/tasks", "20\n")
    host.threads.start(30)
    host.tree.forked(20, 30)
    assert host.read("a/tasks") == "20\n30\n"
    host.threads.end(30)
    host.tree.exited(30)
    host.threads.start(30)
    assert host.read("a/tasks") == "20\n"
    assert host.tree.proc_text(20) == "res:a\nmon:\n"


def test_a_list_stops_at_the_first_bad_one() -> None:
    host = Host("captured-6.12")
    host.mkdir("a")
    assert (
        host.refuses("a/tasks", "10,999,11\n", errno.ESRCH) == "No task 999\nError while processing task 999"
    )
    assert host.read("a/tasks") == "10\n"


def test_an_owner_may_move_only_his_own_threads() -> None:
    host = Host("captured")
    host.mkdir("a")
    tasks = f"{MOUNT_POINT}/a/tasks"
    host.tree.directory.children["a"].children["tasks"].mode = 0o666  # type: ignore[union-attr]
    with pytest.raises(OSError) as told:
        RawFs(host.fs.root, uid=1000).write(tasks, b"10\n")
    assert told.value.errno == errno.EPERM
    assert host.read("info/last_cmd_status") == "No permission to move task 10\n"
    host.threads.owner_uid = 1000
    RawFs(host.fs.root, uid=1000).write(tasks, b"10\n")
    assert host.read("a/tasks") == "10\n"


def test_a_monitor_group_moves_with_its_counters_and_threads() -> None:
    host = Host("captured-6.12")
    for path in ("a", "b", "a/mon_groups/m", "a/mon_groups/n"):
        host.mkdir(path)
    host.write("a/tasks", "10\n")
    host.write("a/mon_groups/m/tasks", "10\n")
    host.tree.account("a/mon_groups/m", 0, mbm_total_bytes=655360)
    host.fs.rename(f"{MOUNT_POINT}/a/mon_groups/m", f"{MOUNT_POINT}/b/mon_groups/k")
    assert host.read("b/tasks") == host.read("b/mon_groups/k/tasks") == "10\n"
    assert host.read("b/mon_data/mon_L3_00/mbm_total_bytes") == "655360\n"
    assert host.names("a/mon_groups") == ["n"]
    host.write("a/cpus_list", "1\n")
    host.write("a/mon_groups/n/cpus_list", "1\n")
    with pytest.raises(OSError, match="not permitted"):
        host.fs.rename(f"{MOUNT_POINT}/a/mon_groups/n", f"{MOUNT_POINT}/b/mon_groups/n")
    assert host.read("info/last_cmd_status") == "Cannot move a MON group that monitors CPUs\n"


def test_a_removed_group_gives_back_everything() -> None:
    host = Host("captured")
    for path in ("a", "a/mon_groups/m"):
        host.mkdir(path)
    host.write("a/tasks", "10\n")
    host.write("a/mon_groups/m/tasks", "10\n")
    host.write("a/cpus_list", "1\n")
    kept = host.fs.open(f"{MOUNT_POINT}/a/mon_groups/m/mon_data/mon_L3_00/llc_occupancy")
    host.rmdir("a")
    assert host.tree.ids_of(10, 1) == (0, 0)
    assert host.read("cpus_list") == "0-3\n"
    with pytest.raises(OSError) as told:
        kept.read()
    assert told.value.errno == errno.ENODEV


def test_a_cpu_that_comes_back_belongs_to_the_root() -> None:
    host = Host("captured")
    host.mkdir("a")
    host.write("a/cpus_list", "2-3\n")
    host.tree.set_online(CpuSet.of([0, 1, 2]))
    assert (host.read("a/cpus_list"), host.read("cpus_list")) == ("2\n", "0-1\n")
    host.tree.set_online(CpuSet.of([0, 1, 2, 3]))
    assert (host.read("a/cpus_list"), host.read("cpus_list")) == ("2\n", "0-1,3\n")


# -- counters and limbo -----------------------------------------------------------------------------------------


def _exhaust(host: Host) -> int:
    for made in range(1000):
        try:
            host.mkdir(f"mon_groups/x{made}")
        except OSError:
            return made
    raise AssertionError("RMIDs never run out")


def test_rmids_in_use_are_enospc_and_those_in_limbo_ebusy_until_evicted() -> None:
    host = Host("captured")
    assert _exhaust(host) == 63
    assert host.mkdir_refused("ctl") == errno.ENOSPC
    host.tree.account("mon_groups/x7", 1, llc_bytes=4 << 20)
    host.rmdir("mon_groups/x7")
    assert host.mkdir_refused("ctl") == errno.EBUSY
    host.tree.now_s = 0.99
    assert host.mkdir_refused("ctl") == errno.EBUSY
    host.tree.now_s = 2.0
    host.mkdir("ctl")


def test_a_clean_rmid_is_free_at_once_on_6_1_and_a_second_later_on_6_12() -> None:
    for kernel, answer in ((LINUX_6_1, None), (LINUX_6_12, errno.EBUSY)):
        host = Host(MACHINES["captured"].on(kernel))
        _exhaust(host)
        host.rmdir("mon_groups/x0")
        if answer is None:
            host.mkdir("mon_groups/y")
            continue
        assert host.mkdir_refused("mon_groups/y") == answer
        host.tree.now_s = 1.0
        host.mkdir("mon_groups/y")


def test_a_domain_that_goes_away_frees_what_was_in_limbo_because_of_it() -> None:
    host = Host("captured")
    _exhaust(host)
    host.tree.account("mon_groups/x7", 1, llc_bytes=4 << 20)
    host.rmdir("mon_groups/x7")
    host.tree.set_online(CpuSet.of([0, 1]))
    host.mkdir("mon_groups/y")


def test_bandwidth_of_the_root_counts_from_the_mount() -> None:
    host = Host("captured")
    host.tree.account("", 0, llc_bytes=65536, mbm_total_bytes=655360)
    host.tree.umount()
    host.tree.mount()
    assert host.read("mon_data/mon_L3_00/mbm_total_bytes") == "0\n"
    assert host.read("mon_data/mon_L3_00/llc_occupancy") == "65536\n"


def test_a_threshold_beyond_the_cache_or_beyond_numbers_is_refused() -> None:
    host, path = Host("captured"), "info/L3_MON/max_threshold_occupancy"
    host.write(path, "0x40000\n")
    for text, number in ((str((16 << 20) + 1), errno.EINVAL), ("9" * 40, errno.ERANGE), ("-1", errno.EINVAL)):
        host.refuses(path, text, number)
    assert host.read(path) == "262144\n"


def test_counters_are_whole_units_and_conditions_are_told() -> None:
    host = Host("captured")
    host.tree.account("", 0, llc_bytes=100_000, mbm_total_bytes=200_000, mbm_local_bytes=65_535)
    values = [host.read(f"mon_data/mon_L3_00/{event}") for event in host.names("mon_data/mon_L3_00")]
    assert values == ["65536\n", "0\n", "196608\n"]
    assert host.tree.monitor is not None
    host.tree.monitor.set_condition(0, "mbm_total_bytes", "Error")
    assert host.read("mon_data/mon_L3_00/mbm_total_bytes") == "Error\n"
    host.tree.monitor.set_condition(0, "mbm_total_bytes", None)
    assert host.read("mon_data/mon_L3_00/mbm_total_bytes") == "196608\n"


# -- faults -----------------------------------------------------------------------------------------------------


def test_a_fault_refuses_once_and_says_why() -> None:
    host = Host("captured")
    host.tree.faults.add(Fault(Operation.MKDIR, "*", errno.EBUSY, "Out of RMIDs"))
    host.tree.faults.add(Fault(Operation.READ, "*/llc_occupancy", errno.EIO, times=2))
    assert host.mkdir_refused("a") == errno.EBUSY
    assert host.read("info/last_cmd_status") == "Out of RMIDs\n"
    host.mkdir("a")
    for _ in range(2):
        with pytest.raises(OSError) as told:
            host.read("a/mon_data/mon_L3_00/llc_occupancy")
        assert told.value.errno == errno.EIO
    assert host.read("a/mon_data/mon_L3_00/llc_occupancy") == "0\n"
    assert host.tree.faults.told[0] == (Operation.MKDIR, "a")


def test_somebody_else_writes_in_between() -> None:
    host = Host("captured")
    host.mkdir("a")
    host.tree.faults.add(
        Interference(Operation.WRITE, "a/schemata", lambda: host.write("a/schemata", "MB:1=20\nL3:0=3\n"))
    )
    host.write("a/schemata", "L3:0=7\n")
    assert host.read("a/schemata") == "    MB:0=100;1= 20\n    L3:0=007;1=7ff\n"


# -- laws ---------------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        "L3",
        "MB",
        "L2",
        ":",
        "=",
        ";",
        "\n",
        " ",
        "0",
        "1",
        "9",
        "7f",
        "600",
        "0x3",
        "50",
        "15",
        "101",
        "-1",
        "zz",
    ]
)
_GOOD = st.one_of(
    st.builds("L3:{}={:x}\n".format, st.integers(0, 1), st.integers(1, 0x7FF)),
    st.builds("MB:{}={}\n".format, st.integers(0, 1), st.integers(0, 110)),
)


@given(st.lists(st.one_of(_GOOD, st.lists(_WORDS, max_size=8).map("".join)), max_size=4).map("".join))
def test_a_schemata_write_applies_whole_or_not_at_all(text: str) -> None:
    host = Host("captured")
    host.mkdir("g")
    before = host.read("g/schemata")
    others = host.read("schemata")
    refused: int | None = None
    try:
        host.write("g/schemata", text)
    except OSError as exc:
        refused = exc.errno
    settled = host.read("g/schemata")
    if refused is None:
        assert host.read("info/last_cmd_status") == "ok\n"
    else:
        assert refused == errno.EINVAL
        assert settled == before
    host.write("g/schemata", settled)
    assert host.read("g/schemata") == settled
    assert host.read("schemata") == others


@given(st.integers(1, 130), st.data())
def test_a_cpu_mask_reads_back(limit: int, data: st.DataObject) -> None:
    mask = data.draw(st.integers(0, (1 << limit) - 1))
    shown = format_cpu_mask(mask, limit)
    assert parse_cpu_mask(shown + "\n", limit) == mask
    assert max(len(chunk) for chunk in shown.split(",")) <= 8


def test_numbers_as_the_kernel_takes_them() -> None:
    assert [unsigned(t, 10) for t in ("5", "+5", "-5", " 5", "5_0", "0x5", "")] == [5, 5] + [None] * 5
    assert [unsigned(t, 16) for t in ("ff", "0xFF", "0x", "f" * 16, "f" * 17)] == [
        255,
        255,
        None,
        (1 << 64) - 1,
        None,
    ]
    assert [signed_int(t) for t in ("0x10", "010", "-3", "--3", "2147483648", "08")] == [
        16,
        8,
        -3,
        None,
        None,
        None,
    ]
    assert unsigned("\u0665", 10) is None


def test_the_status_buffer_is_finite() -> None:
    status = CommandStatus()
    for _ in range(40):
        status.say("Bad CPU list/mask")
    full = status.read()
    assert len(full) < 512
    status.say("x")
    assert status.read() == full
    status.clear()
    assert status.read() == "ok\n"
