from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.composition import build_agent
from perphd.config.file import parse
from perphd.domain.capability import Area, Capabilities
from perphd.domain.errors import Busy, Denied, KernelError, Unsupported
from perphd.host.capabilities import look_again, probe
from perphd.host.cgroup import discover
from perphd.host.fs import KernelFile, RealFs
from perphd.host.perf_event_types import (
    HARDWARE_EVENTS,
    SOFTWARE_EVENTS,
    EventRefused,
    EventSupport,
    PerfEventKind,
)
from perphd.sim.host import SimHost
from perphd.sim.machine import Machine
from perphd.sim.workload import Batch
from tests.unit.host_tree import write_tree

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"
ALL_CAPS, NO_CAPS, WITHOUT_RESOURCE = "000001ffffffffff", "0000000000000000", "000001fffeffffff"
UNIT_CAPS = "000000400188102f"
"""Of the shipped unit: no CAP_SYS_ADMIN."""
ALL_EVENTS = EventSupport(tuple(PerfEventKind), {})


def _status(caps: str, uid: int = 1000) -> str:
    who = f"Name:\tperphd\nUid:\t1000\t{uid}\t1000\t1000"
    return f"{who}\nCapInh:\t0000000000000000\nCapEff:\t{caps}\nCapBnd:\t{ALL_CAPS}"


VM = {
    "/proc/self/mounts": "cgroup /cg/cpu cgroup rw,cpu 0 0\ncgroup /cg/memory cgroup rw,memory 0 0\n"
    "cgroup2 /cg/unified cgroup2 rw 0 0",
    "/cg/cpu/cpu.idle": "0",
    "/cg/unified/cgroup.controllers": "hugetlb",
    "/cg/unified/cpu.pressure": PRESSURE,
    "/proc/pressure/cpu": PRESSURE,
    "/proc/self/status": _status(WITHOUT_RESOURCE),
    "/proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\nMax open files     1024     20000    files",
    "/proc/self/schedstat": "588581 69945 2",
    "/proc/sys/kernel/osrelease": "6.18.44-vm",
    "/proc/sys/kernel/perf_event_paranoid": "2",
    "/proc/filesystems": "nodev\tsysfs\nnodev\tcgroup2\n\text4",
    "/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 hypervisor",
}
METAL = {
    "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\nresctrl /sys/fs/resctrl resctrl rw 0 0",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
    "/sys/fs/cgroup/cgroup.subtree_control": "cpu memory pids",
    "/sys/fs/cgroup/cpu.pressure": PRESSURE,
    "/sys/fs/cgroup/system.slice/cgroup.procs": "",
    "/sys/fs/cgroup/system.slice/cpu.idle": "0",
    "/sys/fs/resctrl/info/L3/cbm_mask": "7ff",
    "/sys/fs/resctrl/info/MB/min_bandwidth": "10",
    "/sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes",
    "/proc/pressure/cpu": PRESSURE,
    "/proc/self/status": _status(ALL_CAPS),
    "/proc/self/limits": "Max open files            unlimited            unlimited            files",
    "/proc/self/schedstat": "1 2 3",
    "/proc/sys/kernel/osrelease": "6.1.0-50-amd64",
    "/proc/sys/kernel/perf_event_paranoid": "3",
    "/proc/filesystems": "nodev\tresctrl\nnodev\tcgroup2",
    "/proc/cpuinfo": "flags\t\t: rdt_a cat_l3 mba cqm_llc cqm_occup_llc cqm_mbm_total",
    "/run/systemd/system/": "",
    "/run/systemd/journal/socket": "",
}


def _support(error: KernelError, *missing: PerfEventKind) -> EventSupport:
    return EventSupport(
        tuple(kind for kind in PerfEventKind if kind not in missing), dict.fromkeys(missing, error)
    )


def _probe(
    root: Path,
    files: dict[str, str],
    events: EventSupport = ALL_EVENTS,
    taskstats: str = "",
    environment: dict[str, str] | None = None,
    fs: RealFs | None = None,
    egress: str = "",
    tcp: str = "",
) -> Capabilities:
    tree = fs or write_tree(root, files)
    return probe(
        tree,
        discover(tree),
        events=lambda _: events,
        taskstats=lambda: taskstats,
        egress=lambda: egress,
        tcp=lambda: tcp,
        environment=environment or {},
    )


def _names(found: Capabilities, present: bool) -> set[str]:
    return {item.name for item in found if item.present is present}


def test_bare_metal_with_everything_but_what_systemd_has_not_enabled(tmp_path: Path) -> None:
    found = _probe(tmp_path, METAL, environment={"NOTIFY_SOCKET": "/run/systemd/notify"})
    assert _names(found, False) == {"cgroup.cpuset", "cgroup.io"}
    assert "AllowedCPUs=" in found["cgroup.cpuset"].remedy
    assert "cgroup.subtree_control" in found["cgroup.cpuset"].detail
    assert found["resctrl.l3_cat"].detail == "info/L3/cbm_mask: 7ff"


def test_egress_ceilings_need_cgroup_v2_and_the_right_to_attach(tmp_path: Path) -> None:
    assert "EPERM" in _probe(tmp_path / "a", METAL, egress="EPERM")["network.egress"].detail
    none = _probe(tmp_path / "b", {})["network.egress"]
    assert not none.present
    assert "no cgroup v2" in none.detail


def test_latency_by_tcp_needs_cgroup_v2_links_and_capabilities(tmp_path: Path) -> None:
    assert _probe(tmp_path / "a", METAL)["tcp.latency"].present
    denied = _probe(tmp_path / "b", METAL, tcp="bpf(2): EPERM")["tcp.latency"]
    assert (denied.present, denied.detail) == (False, "bpf(2): EPERM")
    assert "CAP_BPF" in denied.remedy
    none = _probe(tmp_path / "c", {})["tcp.latency"]
    assert "no cgroup v2" in none.detail
    assert "mount -t cgroup2" in none.remedy
    old = _probe(tmp_path / "d", METAL | {"/proc/sys/kernel/osrelease": "5.4.0-1"})["tcp.latency"]
    assert "Linux 5.4.0-1" in old.detail
    assert old.remedy == "Linux 5.7 or newer"


def test_a_virtual_machine_with_hybrid_cgroups(tmp_path: Path) -> None:
    no_pmu = Unsupported("/cg/unified", "perf_event_open(instructions, CPU 0)", errno.ENOENT)
    found = _probe(tmp_path, VM, _support(no_pmu, *HARDWARE_EVENTS))

    assert _names(found, False) == {
        "cgroup.cpuset",
        "cgroup.io",
        "memory.protection",
        "perf.hardware",
        "resctrl",
        "resctrl.l3_cat",
        "resctrl.mba",
        "resctrl.cmt",
        "resctrl.mbm",
        "resctrl.monitoring",
        "systemd",
        "notify",
        "journald",
    }
    assert found["cgroup"].detail == "hybrid: v2 at /cg/unified; v1 for cpu, memory"
    assert "ENOENT" in found["perf.hardware"].detail
    assert "not in /proc/filesystems" in found["resctrl"].detail
    assert "multiples of 2 s" in found["psi.triggers"].detail


@pytest.mark.parametrize("files", [VM, METAL, {}])
def test_what_is_absent_says_why_what_it_costs_and_how_to_get_it(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for item in _probe(tmp_path, files, taskstats="EPERM"):
        assert item.detail, item.name
        assert bool(item.cost) == bool(item.remedy) == (not item.present), item.name


def test_an_empty_host_can_do_nothing_and_says_so_under_the_same_names(tmp_path: Path) -> None:
    error = Unsupported("/", "perf_event_open", errno.ENOSYS)
    found = _probe(tmp_path, {}, _support(error, *PerfEventKind), taskstats="no netlink")
    assert _names(found, True) == set()
    names = [item.name for item in found]
    assert len(names) == len(set(names))
    assert set(names) == {item.name for item in _probe(tmp_path, VM)}


def test_psi_switched_off_at_boot(tmp_path: Path) -> None:
    class PsiOff(RealFs):
        def open(self, path: str) -> KernelFile:
            if path.startswith("/proc/pressure"):
                raise Unsupported(path, "open", errno.EOPNOTSUPP)
            return super().open(path)

    write_tree(tmp_path, VM)
    (tmp_path / "cg/unified/cpu.pressure").unlink()
    found = _probe(tmp_path, VM, fs=PsiOff(tmp_path))
    assert {"psi.system", "psi.cgroup", "psi.triggers"} <= _names(found, False)
    assert "EOPNOTSUPP" in found["psi.system"].detail
    assert "psi=1" in found["psi.system"].remedy


def test_pressure_that_the_root_lacks_is_found_in_a_child(tmp_path: Path) -> None:
    files = dict(METAL)
    del files["/sys/fs/cgroup/cpu.pressure"]
    files["/sys/fs/cgroup/system.slice/cpu.pressure"] = PRESSURE
    assert _probe(tmp_path, files).has("psi.cgroup")


def test_an_unprivileged_daemon(tmp_path: Path) -> None:
    files = METAL | {"/proc/self/status": _status(NO_CAPS)}
    denied = Denied("/sys/fs/cgroup", "perf_event_open(instructions, CPU 0)", errno.EACCES)
    found = _probe(tmp_path, files, _support(denied, *PerfEventKind), taskstats="EPERM (needs CAP_NET_ADMIN)")

    assert {"privilege", "perf.permission", "perf.hardware", "taskstats", "psi.triggers"} <= _names(
        found, False
    )
    assert "perf_event_paranoid is 3" in found["perf.permission"].detail
    assert "CAP_PERFMON" in found["perf.hardware"].remedy
    assert "6.1.0-50" in found["psi.triggers"].detail


def test_a_kernel_that_wants_more_than_cap_perfmon(tmp_path: Path) -> None:
    denied = Denied("/sys/fs/cgroup", "perf_event_open(instructions, CPU 0)", errno.EACCES)
    found = _probe(
        tmp_path, METAL | {"/proc/self/status": _status(UNIT_CAPS)}, _support(denied, *PerfEventKind)
    )
    assert not found.has("perf.permission")
    assert "CAP_PERFMON is effective, but does not suffice" in found["perf.permission"].detail
    for name in ("perf.permission", "perf.hardware", "perf.software"):
        assert "kernel.perf_event_paranoid to 2" in found[name].remedy
    assert found.has("privilege"), "writing control groups takes no CAP_SYS_ADMIN"


def test_root_writes_its_own_groups_without_any_capability(tmp_path: Path) -> None:
    found = _probe(tmp_path / "root", METAL | {"/proc/self/status": _status(NO_CAPS, uid=0)})
    assert "not those delegated" in found["privilege"].detail
    found = _probe(tmp_path / "user", METAL | {"/proc/self/status": _status(NO_CAPS)})
    assert not found.has("privilege")
    assert "cannot be written" in found["privilege"].cost


def test_paranoid_zero_needs_no_capability(tmp_path: Path) -> None:
    files = METAL | {"/proc/self/status": _status(NO_CAPS), "/proc/sys/kernel/perf_event_paranoid": "0"}
    assert _probe(tmp_path, files).has("perf.permission")


def test_a_pmu_that_lacks_cache_events_still_gives_mips(tmp_path: Path) -> None:
    error = Unsupported("/", "perf_event_open", errno.ENOENT)
    found = _probe(tmp_path, METAL, _support(error, PerfEventKind.LLC_MISSES))
    assert found["perf.hardware"].present
    assert "not llc-misses" in found["perf.hardware"].detail


def test_resctrl_there_but_not_mounted(tmp_path: Path) -> None:
    files = METAL | {"/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"}
    found = _probe(tmp_path, files)
    assert found["resctrl"].remedy.startswith("systemctl enable --now sys-fs-resctrl.mount (permanent);")
    assert "mount -t resctrl" in found["resctrl"].remedy
    assert "the CPU has cat_l3, but resctrl is not mounted" in found["resctrl.l3_cat"].detail


def test_a_kernel_before_cpu_idle(tmp_path: Path) -> None:
    files = METAL | {"/proc/sys/kernel/osrelease": "5.10.0-30"}
    del files["/sys/fs/cgroup/system.slice/cpu.idle"]
    found = _probe(tmp_path, files)
    assert not found.has("cpu.idle")
    assert "5.15" in found["cpu.idle"].remedy


def test_schedstat_of_a_kernel_that_does_not_account(tmp_path: Path) -> None:
    found = _probe(tmp_path, METAL | {"/proc/self/schedstat": "0 0 0"})
    assert "'0 0 0'" in found["schedstat"].detail
    assert found["schedstat"].area is Area.MEASURE


def test_few_open_files(tmp_path: Path) -> None:
    found = _probe(tmp_path, METAL | {"/proc/self/limits": "Max open files    256   1024   files"})
    assert not found.has("open-files")
    assert "LimitNOFILE=" in found["open-files"].remedy


def test_software_events_are_judged_on_their_own(tmp_path: Path) -> None:
    error = Unsupported("/", "perf_event_open", errno.ENOENT, advice="perf does not see cgroups")
    found = _probe(tmp_path, METAL, _support(error, *SOFTWARE_EVENTS))
    assert found.has("perf.hardware")
    assert "does not see cgroups" in found["perf.software"].detail


def test_performance_events_are_asked_where_workloads_are(tmp_path: Path) -> None:
    """Before cgroup.subtree_control was ever written, they work in the root and nowhere else."""
    unseen = Busy("/", "perf_event_open", errno.ENOENT, advice="write to cgroup.subtree_control")

    def events(directory: str) -> EventSupport:
        if directory == "/sys/fs/cgroup":
            return ALL_EVENTS
        return EventSupport((), dict.fromkeys(PerfEventKind, unseen))

    def found(folder: str, files: dict[str, str]) -> Capabilities:
        tree = write_tree(tmp_path / folder, files)
        return probe(tree, discover(tree), events=events, taskstats=str, egress=str, environment={})

    with_child = found("child", METAL)
    assert not with_child.has("perf.hardware")
    assert not with_child.has("perf.software")
    assert with_child["perf.hardware"].remedy == "write to cgroup.subtree_control"
    alone = found("alone", {name: text for name, text in METAL.items() if "system.slice" not in name})
    assert alone.has("perf.hardware")
    assert "(asked in /sys/fs/cgroup)" in alone["perf.hardware"].detail


def test_every_missing_event_has_its_reason(tmp_path: Path) -> None:
    kinds = (PerfEventKind.LLC_REFERENCES, PerfEventKind.LLC_MISSES)
    refused = EventRefused(
        "/", "perf_event_open", errno.EOPNOTSUPP, kinds[0], advice="its L3 PMU knows no cgroups"
    )
    detail = _probe(tmp_path, METAL, _support(refused, *kinds))["perf.hardware"].detail
    assert detail.startswith("instructions, cycles, stall-backend, stall-memory (asked in")
    assert detail.endswith("; not llc-references, llc-misses: its L3 PMU knows no cgroups")


@pytest.mark.parametrize(
    ("features", "cmt", "mbm", "monitoring"),
    [
        ("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes", True, True, True),
        ("llc_occupancy", True, False, True),
        ("mbm_local_bytes", False, False, False),
        (None, False, False, False),
    ],
)
def test_each_counter_of_resctrl_is_named(
    tmp_path: Path, features: str | None, cmt: bool, mbm: bool, monitoring: bool
) -> None:
    files = {name: text for name, text in METAL.items() if not name.endswith("mon_features")}
    if features is not None:
        files["/sys/fs/resctrl/info/L3_MON/mon_features"] = features
        files["/sys/fs/resctrl/info/L3_MON/num_rmids"] = "64\n"
    found = _probe(tmp_path, files)
    names = ("resctrl.cmt", "resctrl.mbm", "resctrl.monitoring")
    assert tuple(found.has(name) for name in names) == (cmt, mbm, monitoring)
    if monitoring:
        assert "64 monitoring ids" in found["resctrl.monitoring"].detail
    if cmt and not mbm:
        assert "mbm_total_bytes" in found["resctrl.mbm"].detail


def test_counters_of_a_host_whose_resctrl_is_not_mounted(tmp_path: Path) -> None:
    found = _probe(tmp_path, METAL | {"/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"})
    assert found["resctrl.cmt"].remedy == "see resctrl"
    assert "not mounted" in found["resctrl.mbm"].detail


def test_resctrl_with_code_and_data_apart_can_divide_the_cache(tmp_path: Path) -> None:
    files = {path: text for path, text in METAL.items() if "/info/L3/" not in path}
    files |= {"/sys/fs/resctrl/info/L3CODE/cbm_mask": "7ff", "/sys/fs/resctrl/info/L3DATA/cbm_mask": "7ff"}
    cat = _probe(tmp_path, files)["resctrl.l3_cat"]
    assert cat.present
    assert cat.detail == "info/L3DATA/cbm_mask: 7ff; code and data separate (cdp), both get the same mask"


def test_resctrl_with_limits_in_mbps_cannot_throttle_by_per_cents(tmp_path: Path) -> None:
    mounts = METAL["/proc/self/mounts"].replace("resctrl rw", "resctrl rw,relatime,mba_MBps")
    found = _probe(tmp_path, {**METAL, "/proc/self/mounts": mounts})
    assert not found["resctrl.mba"].present
    assert "limits are in MB/s, but perphd sets percentages" in found["resctrl.mba"].detail
    assert "mount -t resctrl" in found["resctrl.mba"].remedy
    assert found["resctrl.l3_cat"].present


def test_resctrl_is_looked_at_again_while_the_daemon_runs(tmp_path: Path) -> None:
    host = SimHost([Batch("pi", "/batch/pi")], machine=Machine(1, 2), resctrl=True)
    tree = host.resctrl
    assert tree is not None
    tree.umount()
    nothing = {
        "events": lambda _: ALL_EVENTS,
        "taskstats": lambda: "",
        "egress": lambda: "",
        "environment": {},
    }
    at_start = probe(host.fs, discover(host.fs), **nothing)  # type: ignore[arg-type]
    assert not at_start["resctrl"].present
    tree.mount("cdp")
    now = look_again(host.fs, at_start)
    assert now["resctrl"].detail == "mounted at /sys/fs/resctrl"
    assert now["resctrl.l3_cat"].present
    assert [item.name for item in now] == [item.name for item in at_start]
    assert [i for i in now if "resctrl" not in i.name] == [i for i in at_start if "resctrl" not in i.name]
    plain = parse("", "test")
    config = replace(plain, daemon=replace(plain.daemon, state_dir=str(tmp_path)))
    agent = build_agent(config, fs=host.fs, opener=host.perf_opener, store=False)
    told = [agent.capabilities["resctrl"].present]
    tree.umount()
    told.append(agent.capabilities["resctrl"].present)
    assert told == [True, False], "as it is now, and not as it was at the start"
    asyncio.run(agent.stop(restore=False))
