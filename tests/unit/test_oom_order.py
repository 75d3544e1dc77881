"""The order in which the kernel kills, beside the one that declared bands promise."""

from __future__ import annotations

import os
from pathlib import Path

from perphd.agent.oom_order import OomOrder
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import RealFs
from perphd.qos.bands import QosBand
from perphd.qos.oom_order import OomScores, daemons_at_risk, out_of_order
from tests.unit.host_tree import write_tree

GOLD, SILVER, COPPER = QosBand.GOLD, QosBand.SILVER, QosBand.COPPER


def test_the_order_that_bands_promise_is_not_mentioned() -> None:
    assert not out_of_order(())
    right = [
        OomScores("db", GOLD, -997, -997),
        OomScores("web", SILVER, 0, 100),
        OomScores("web2", SILVER, -500, 0),  # equals among each other
        OomScores("pi", COPPER, 900, 1000),
    ]
    assert not out_of_order(right)


def test_one_process_that_may_die_too_early_breaks_it() -> None:
    found = out_of_order([OomScores("db", GOLD, -997, 0), OomScores("web", SILVER, 0, 0)])
    assert found == (
        "db (gold, oom_score_adj -997 to 0) may be killed for memory before web (silver, oom_score_adj 0): "
        "their units need OOMScoreAdjust= (-997 for gold, 0 for silver)",
    )


def test_it_is_told_for_each_who_all_outlive_it() -> None:
    found = out_of_order(
        [OomScores("db", GOLD, 0, 0), OomScores("web", SILVER, 0, 0), OomScores("pi", COPPER, 0, 200)]
    )
    assert len(found) == 2
    assert "web (silver" in found[0]
    assert "pi (copper" in found[0]
    assert "db" not in found[1]
    assert "1000 for copper" in found[1]


def spec(name: str, kind: Kind, band: str | None) -> WorkloadSpec:
    return WorkloadSpec(name, kind, f"/t/{name}", band=band)


def test_values_come_from_the_processes_of_declared_bands(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    fs = write_tree(
        tmp_path,
        {
            "/proc/self/mounts": f"cgroup2 {group} cgroup2 rw 0 0",
            "/proc/mounts": f"cgroup2 {group} cgroup2 rw 0 0",
            f"{group}/cgroup.controllers": "cpu memory",
            f"{group}/t/db/cgroup.procs": "10\n11",
            f"{group}/t/db/worker/cgroup.procs": "12",
            f"{group}/t/pi/cgroup.procs": "20",
            f"{group}/t/idle/cgroup.procs": "",
            "/proc/10/oom_score_adj": "-997",
            "/proc/12/oom_score_adj": "300",  # 11 has just ended
            "/proc/20/oom_score_adj": "300",
        },
    )
    order = OomOrder(fs, discover(fs))
    db, pi, idle = (
        spec("db", Kind.LRA, "gold"),
        spec("pi", Kind.BATCH, "copper"),
        spec("idle", Kind.BATCH, "copper"),
    )
    [text] = order.broken([db, pi, idle])
    assert text.startswith("db (gold, oom_score_adj -997 to 300) may be killed for memory before pi (copper")
    assert not order.broken([db, spec("pi", Kind.BATCH, None)])  # batch that declares no band
    fs.write("/proc/12/oom_score_adj", b"-997")
    assert not order.broken([db, pi, idle])


def test_the_hosts_own_daemons_outlive_copper() -> None:
    daemons = [OomScores(f"{name}.service", QosBand.SYSTEM, 0, 0) for name in ("a", "b", "c", "d")]
    daemons.append(OomScores("sshd.service", QosBand.SYSTEM, -1000, -1000))
    [text] = daemons_at_risk(daemons, [OomScores("pi", COPPER, 0, 0), OomScores("web", SILVER, -5, -5)])
    assert text == (
        "4 of the host's own daemons (a.service, b.service, c.service and 1 more) may be killed for memory before "
        "pi (copper, oom_score_adj 0): its unit needs OOMScoreAdjust=1000"
    )
    assert not daemons_at_risk(daemons, [OomScores("pi", COPPER, 1, 1000)])


def test_daemons_are_the_services_that_nobody_declared(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup"
    tree = {
        "/proc/self/mounts": f"cgroup2 {group} cgroup2 rw 0 0",
        "/proc/mounts": f"cgroup2 {group} cgroup2 rw 0 0",
        f"{group}/cgroup.controllers": "cpu memory",
        f"{group}/t/pi/cgroup.procs": "20",
        f"{group}/system.slice/cron.service/cgroup.procs": "30",
        f"{group}/system.slice/db.service/cgroup.procs": "31",
        f"{group}/system.slice/dev-sda.swap/cgroup.procs": "32",
    }
    fs = write_tree(tmp_path, tree | {f"/proc/{pid}/oom_score_adj": "0" for pid in (20, 30, 31, 32)})
    db = WorkloadSpec("db", Kind.LRA, "/system.slice/db.service")
    [text] = OomOrder(fs, discover(fs)).broken([db, spec("pi", Kind.BATCH, "copper")])
    assert text.startswith("1 of the host's own daemons (cron.service) may be killed for memory before pi (copper")


def test_the_kernel_has_the_value_where_it_is_read() -> None:
    text = RealFs("").read(f"/proc/{os.getpid()}/oom_score_adj")
    assert -1000 <= int(text) <= 1000
