"""Cache occupancy and memory bandwidth through the whole agent, beside what the resctrl tree itself says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from perphd.agent.assembly import assemble
from perphd.agent.composition import build_parts
from perphd.agent.simulated import simulated_sli
from perphd.commands.render_status import status_parts
from perphd.config.file import Config, DaemonConfig, ResctrlConfig, StoreConfig
from perphd.control.metrics import Collector
from perphd.control.table import plain
from perphd.domain.reading import available
from perphd.domain.sample import Sample
from perphd.domain.wire import encode
from perphd.domain.workload import Kind, Mode, SliSpec, WorkloadSpec
from perphd.isolation.restore import restore
from perphd.monitor.query import run_query
from perphd.sim.host import Arrival, SimHost
from perphd.sim.kernel.resctrl import MOUNT_POINT
from perphd.sim.machine import CGROUP_ROOT, Machine
from perphd.sim.workload import placed

ARRIVES_S = 15.0
DB, BATCH = "/t/db", "/t/scan"
SPECS = (
    WorkloadSpec("db", Kind.LRA, DB, sli=SliSpec("simulated", (("workload", "db"),))),
    WorkloadSpec("scan", Kind.BATCH, BATCH),
)


class World:
    """A simulated server of two sockets with resctrl, and an agent on it."""

    def __init__(
        self,
        state: Path,
        mode: Mode = Mode.ENFORCE,
        policy: str = "none",
        in_observe: bool = False,
        specs: Sequence[WorkloadSpec] = SPECS,
    ) -> None:
        self.host = SimHost(
            (placed("mysql-oltp", DB, "db"), placed("batch-stream", BATCH, "scan")),
            machine=Machine(2, 4),
            events=(Arrival(ARRIVES_S, "scan"),),
            seed=5,
            pmu=True,
            resctrl=True,
        )
        for cgroup in (DB, BATCH):
            self.host.fs.write(f"{CGROUP_ROOT}{cgroup}/cpuset.cpus", str(self.host.machine.online).encode())
        self.state = state
        self.config = Config(
            daemon=DaemonConfig(mode=mode, state_dir=str(state), policy=policy),  # type: ignore[arg-type]
            store=StoreConfig(enabled=True),
            resctrl=ResctrlConfig(monitor_in_observe=in_observe),
            workloads=tuple(specs),
        )
        self.parts = build_parts(
            self.config,
            fs=self.host.fs,
            opener=self.host.perf_opener,
            sli_opener=simulated_sli(self.host),
        )
        self.agent = assemble(self.config, self.parts)
        self.now_s = 0.0

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.host.advance(self.now_s)
            await self.agent.tick(self.now_s)

    def group_of(self, name: str) -> str:
        """The group with most of the workload's threads: a monitor group if there is one, else a control group."""
        tids = set(
            self.host.fs.read(f"{CGROUP_ROOT}{ {'db': DB, 'scan': BATCH}[name] }/cgroup.threads").split()
        )
        found = ""
        for group in sorted(self.groups(), key=lambda path: path.count("/")):
            if tids & set(self.host.fs.read(f"{MOUNT_POINT}/{group}/tasks").split()):
                found = group
        return found

    def groups(self) -> list[str]:
        fs = self.host.fs
        tops = [
            "",
            *(n for n in fs.subdirectories(MOUNT_POINT) if n not in ("info", "mon_data", "mon_groups")),
        ]
        found = []
        for top in tops:
            found.append(top)
            inside = fs.subdirectories(f"{MOUNT_POINT}/{top}/mon_groups".replace("//", "/"))
            found += [f"{top}/mon_groups/{name}".lstrip("/") for name in inside]
        return found

    def tree(self, name: str) -> tuple[list[int], list[int]]:
        """Occupancy now and bytes so far by domain, as anybody reads them."""
        base = f"{MOUNT_POINT}/{self.group_of(name)}".rstrip("/")
        read = lambda d, event: int(self.host.fs.read(f"{base}/mon_data/mon_L3_0{d}/{event}"))  # noqa: E731
        return [read(d, "llc_occupancy") for d in (0, 1)], [read(d, "mbm_total_bytes") for d in (0, 1)]

    def sample(self, name: str) -> Sample:
        return self.agent.samples[name]


@asynccontextmanager
async def world(state: Path, **more: object) -> AsyncIterator[World]:
    made = World(state, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.agent.stop(restore=False)


def near(a: float, b: float, share: float = 0.1) -> bool:
    return abs(a - b) <= share * max(abs(a), abs(b))


def told(text: str, series: str) -> float:
    """The value of one series in a scrape."""
    line = next(one for one in text.splitlines() if one.startswith(series))
    return float(line.removeprefix(series))


async def test_status_store_and_metrics_say_what_the_tree_counts(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(30)
        for name in ("db", "scan"):
            assert w.group_of(name) == f"mon_groups/perphd.{name}"
        before = {name: w.tree(name) for name in ("db", "scan")}
        collector = Collector(w.agent.status, lambda: w.agent.tally, lambda: w.agent.topology)
        text_before = collector.text().decode()
        await w.run(1)
        status = w.agent.status()
        shown = encode(status)
        text = collector.text().decode()
        for item, seen in zip(status.workloads, shown["workloads"], strict=True):
            name, sample = item.spec.name, item.sample
            assert sample is not None
            held, counted = w.tree(name)
            moved = [now - then for now, then in zip(counted, before[name][1], strict=True)]
            assert sum(held) > 0
            assert sum(moved) > 1e6
            assert available(sample.llc_occupancy_bytes)
            assert near(sample.llc_occupancy_bytes, sum(held))
            assert available(sample.mbw_bytes_per_s)
            assert near(sample.mbw_bytes_per_s, sum(moved))
            for use in sample.domains:
                assert available(use.llc_occupancy_bytes)
                assert near(use.llc_occupancy_bytes, held[use.domain])
                assert available(use.mbw_bytes_per_s)
                assert near(use.mbw_bytes_per_s, moved[use.domain])
            assert [use["domain"] for use in seen["sample"]["domains"]] == [0, 1]
            kind = item.spec.kind.value
            for use in sample.domains:
                of = f'{{workload="{name}",kind="{kind}",domain="{use.domain}"}} '
                gauge, counter = (
                    "perphd_workload_llc_occupancy_bytes",
                    "perphd_workload_memory_traffic_bytes_total",
                )
                assert near(told(text, gauge + of), held[use.domain])
                grown = told(text, counter + of) - told(text_before, counter + of)
                assert near(grown, moved[use.domain])
        table = plain(status_parts(status, w.now_s, verbose=True))
        assert table.count("CACHE") == 1
        assert table.count("BANDWIDTH") == 1
        expected = {name: w.sample(name) for name in ("db", "scan")}
    rows = run_query(
        tmp_path / "perphd.db",
        "SELECT workload, llc_occupancy_bytes, mbw_bytes_per_s, domains FROM samples ORDER BY at_s DESC LIMIT 2",
    ).rows
    assert len(rows) == 2
    for workload, held_bytes, rate, domains in rows:
        sample = expected[str(workload)]
        assert (held_bytes, rate) == (sample.llc_occupancy_bytes, sample.mbw_bytes_per_s)
        assert [domain for domain, _, _ in json.loads(str(domains))] == [0, 1]


async def test_no_rate_is_booked_over_a_change_of_groups(tmp_path: Path) -> None:
    """Control groups come and go under ``perph``: every rate is one that the node really moved."""
    async with world(tmp_path, policy="perph", in_observe=True) as w:
        seen: dict[str, list[str]] = {"db": [], "scan": []}
        rates: dict[str, list[float]] = {"db": [], "scan": []}
        for second in range(110):
            if second == 80:
                w.agent.set_mode(Mode.OBSERVE)  # the control groups go, monitor groups come
            moved = {name: w.host.outcome(name).bandwidth_bytes_per_s for name in rates}
            await w.run(1)
            for name, group in ((name, w.group_of(name)) for name in rates):
                sample, now = w.sample(name), w.host.outcome(name).bandwidth_bytes_per_s
                changed = bool(seen[name]) and seen[name][-1] != group
                seen[name].append(group)
                if changed or not available(sample.mbw_bytes_per_s):
                    continue
                low, high = sorted((moved[name], now))
                # Within what the node moved at either end of the second, but for what it did in between.
                assert 0.7 * low <= sample.mbw_bytes_per_s <= 1.4 * high, (name, w.now_s, group)
                rates[name].append(sample.mbw_bytes_per_s)
        assert set(seen["db"]) == {"mon_groups/perphd.db"}
        assert {"perphd.scan", "mon_groups/perphd.scan"} <= set(seen["scan"])
        assert len(rates["db"]) > 100
        assert len(rates["scan"]) > 75


async def test_what_restore_finds_after_a_kill_is_removed_and_threads_stay(tmp_path: Path) -> None:
    w = World(tmp_path)
    await w.run(20)
    assert {"mon_groups/perphd.db", "mon_groups/perphd.scan"} <= set(w.groups())
    w.host.fs.raw.mkdir(f"{MOUNT_POINT}/mon_groups/theirs")
    for part in w.parts.owned:  # the process is gone: no group is given back, the journal's lock is free
        part.close()
    report = restore(w.host.fs, tmp_path)
    assert not report.failed
    assert [g for g in w.groups() if g] == ["mon_groups/theirs"]
    again = restore(w.host.fs, tmp_path)
    assert not again.restored


async def test_observing_makes_no_group_and_says_what_that_costs(tmp_path: Path) -> None:
    async with world(tmp_path, mode=Mode.OBSERVE) as w:
        await w.run(20)
        assert w.groups() == [""]
        assert not available(w.sample("db").llc_occupancy_bytes)
        (note,) = w.agent.status().notes
        assert "db, scan" in note
        assert "monitor_in_observe = true" in note
        assert "CACHE" not in plain(status_parts(w.agent.status(), w.now_s, verbose=True))


async def test_observing_measures_where_the_operator_allows_it(tmp_path: Path) -> None:
    async with world(tmp_path, mode=Mode.OBSERVE, in_observe=True) as w:
        await w.run(20)
        assert available(w.sample("db").llc_occupancy_bytes)
        assert available(w.sample("scan").mbw_bytes_per_s)
        assert w.agent.status().notes == ()
        # Settings are as found: monitor groups are all there is.
        assert [g for g in w.groups() if g] == ["mon_groups/perphd.db", "mon_groups/perphd.scan"]


async def test_groups_go_when_enforcing_ends_and_when_a_workload_leaves(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.run(20)
        await w.agent.remove_workload("scan")
        assert "mon_groups/perphd.scan" not in w.groups()
        await w.run(2)
        assert "mon_groups/perphd.db" in w.groups()
        w.agent.set_mode(Mode.OBSERVE)
        await w.run(2)
        assert w.groups() == [""]
        assert w.agent.status().journal_entries == 0


async def test_doctor_says_yes_only_when_workloads_are_measured(tmp_path: Path) -> None:
    async with world(tmp_path, mode=Mode.OBSERVE) as w:
        await w.run(3)
        found = w.agent.capabilities["resctrl.monitoring"]
        assert not found.present
        assert "only observed" in found.detail
        assert "monitor_in_observe" in found.remedy
        assert w.agent.capabilities.has("resctrl.cmt")
        w.agent.set_mode(Mode.ENFORCE)
        await w.run(3)
        found = w.agent.capabilities["resctrl.monitoring"]
        assert found.present
        assert "1 of 2 workloads are measured" in found.detail  # batch has not come yet
