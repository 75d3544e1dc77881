"""A host of which only the files are here (tuning.host.root): what is read, and what is not asked of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.agent.composition import probe_elsewhere
from perphd.agent.simulated_mount import ServerPlan, daemon_config, machine_names, mount
from perphd.config.file import parse
from perphd.config.restore import RestorePlace, for_restore
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ConfigError, Gone, PerphError, Unsupported
from perphd.host.cgroup import discover
from perphd.host.event_files import EVENT_FILES, EventFiles, counts_text
from perphd.host.fs import RealFs
from perphd.host.perf_event_types import PerfEventKind
from perphd.sim.kernel import Directory, SimFs
from perphd.sim.kernel.cgroup2 import CgroupTree
from perphd.sim.kernel.proc import BASE_MOUNTS, add_host_files, cgroup2_mount, set_mounts

APP = "/sys/fs/cgroup/app"
ALL = CpuSet(3)


def test_counters_are_read_from_files() -> None:
    root = Directory()
    counts = {PerfEventKind.INSTRUCTIONS: 100.9, PerfEventKind.CYCLES: 50.0}
    folder = root.make(EVENT_FILES + "/sys/fs/cgroup")
    folder.add("app", lambda: counts_text(counts) + "nonsense 3\ncycles_too x\n")
    opener = EventFiles(SimFs(root))
    with pytest.raises(Unsupported, match="llc_misses"):
        opener(APP, ALL, (PerfEventKind.INSTRUCTIONS, PerfEventKind.LLC_MISSES))
    with pytest.raises(Gone):
        opener(APP + "2", ALL, (PerfEventKind.CYCLES,))
    group = opener(APP, ALL, (PerfEventKind.CYCLES, PerfEventKind.INSTRUCTIONS))
    counts[PerfEventKind.INSTRUCTIONS] = 350.0
    assert group.read() == {PerfEventKind.CYCLES: 0.0, PerfEventKind.INSTRUCTIONS: 250.0}
    assert (group.starved_cpus, group.lost_cpus, group.fds) == (CpuSet(), CpuSet(), 1)
    folder.remove("app")
    with pytest.raises(Gone):
        group.read()
    group.close()
    group.close()


def test_the_report_asks_nothing_of_this_machine() -> None:
    root = Directory()
    set_mounts(root, [*BASE_MOUNTS, cgroup2_mount("/sys/fs/cgroup")])
    CgroupTree(root.make("/sys/fs/cgroup"), ALL, CpuSet(1), 2).make("/app")
    fs = SimFs(root)
    without = probe_elsewhere(fs, discover(fs))
    stated = probe_elsewhere(fs, discover(fs), EventFiles(fs))
    reasons = [item.detail for item in without.items if not item.present]
    assert sum("below tuning.host.root" in reason for reason in reasons) >= 2, (
        reasons
    )  # perf events and taskstats
    assert sum(item.present for item in stated.items) > sum(item.present for item in without.items)


def test_the_whole_host_is_told_in_proc() -> None:
    root = Directory()
    tree = CgroupTree(root.make("/sys/fs/cgroup"), ALL, CpuSet(1), 2)
    tree.root.cpu.usage_s, tree.root.cpu.system_s = 3.0, 1.0
    add_host_files(root, tree, lambda: 10.0)
    lines = SimFs(root).read("/proc/stat").decode().splitlines()
    assert lines[:3] == [
        "cpu  200 0 100 1700 0 0 0 0 0 0",
        "cpu0 100 0 50 850 0 0 0 0 0 0",
        "cpu1 100 0 50 850 0 0 0 0 0 0",
    ]
    assert SimFs(root).read("/proc/sys/kernel/random/boot_id").count(b"-") == 4


def test_the_root_is_known_to_those_who_restore(tmp_path: Path) -> None:
    path = tmp_path / "perphd.toml"
    path.write_text('[tuning.host]\nroot = "/mnt/server/"\n[daemon]\nstate_dir = "/state"\n')
    assert for_restore(path, pytest.fail) == RestorePlace(("/state",), "/mnt/server")
    path.write_text('[tuning.host]\nroot = "relative"\n')
    warnings: list[str] = []
    assert for_restore(path, warnings.append) == RestorePlace(("/var/lib/perphd",), "", is_guessed=True)
    assert "absolute path" in warnings[0]


def test_the_printed_configuration_is_accepted() -> None:
    config = parse(daemon_config("/mnt/server", ServerPlan().workloads, "/state"), "printed")
    assert config.host.root == "/mnt/server"
    assert [spec.cgroup for spec in config.workloads] == [spec.cgroup for spec in ServerPlan().workloads]


def test_what_cannot_be_mounted_is_told(tmp_path: Path) -> None:
    with pytest.raises(PerphError, match="No such file or directory; make an empty directory"):
        mount(ServerPlan(), str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="no archetype"):
        mount(ServerPlan(kinds={"mysql": "nonsense"}), str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(PerphError, match="is not empty"):
        mount(ServerPlan(), str(tmp_path))
    (tmp_path / "file").unlink()
    assert {"rdt", "plain", "captured"} <= set(machine_names())
    assert RealFs(str(tmp_path)).listdir("/") == []
