"""The account of the host: its parts always add up, and undeclared groups are found at a bounded cost."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.commands.render_host import host_lines
from perphd.domain.allocation import UNTOUCHED
from perphd.domain.host_account import NO_GROUP, CpuAccount, GroupUse, HostAccount, divided, mean_account
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Sample
from perphd.domain.status import WorkloadStatus
from perphd.domain.workload import Kind, Mode, WorkloadSpec
from perphd.host.cgroup.hierarchy import discover
from perphd.host.fs import KernelFile, RealFs
from perphd.monitor import undeclared
from perphd.monitor.host_account import HostAccounts
from perphd.monitor.host_cpu import CpuTimes, divide, own_use
from perphd.monitor.query import run_query
from perphd.monitor.store import Store
from perphd.monitor.undeclared import IN_TURN, LOOK_S, MOST_BUSY, UndeclaredGroups

amounts = st.floats(0.0, 1e6, allow_nan=False)
cores = st.floats(0.0, 512.0, allow_nan=False)
groups = st.dictionaries(st.sampled_from(["/a", "/b", "/c/d", "/"]), cores)
times = st.builds(CpuTimes, st.integers(1, 512), amounts, amounts, amounts, amounts)


def total(cpu: CpuAccount) -> float:
    return math.fsum((cpu.lras, cpu.batch, cpu.undeclared, cpu.kernel, cpu.steal, cpu.idle))


@given(times, cores, cores, groups, st.booleans())
def test_the_parts_add_up_to_the_capacity_and_none_is_negative(
    seen: CpuTimes, lras: float, batch: float, named: dict[str, float], rest_is_kernel: bool
) -> None:
    cpu, shares = divide(seen, lras, batch, named, rest_is_kernel)
    assert total(cpu) == pytest.approx(cpu.capacity, rel=1e-9)
    assert min(cpu.lras, cpu.batch, cpu.undeclared, cpu.kernel, cpu.steal, cpu.idle) >= 0.0
    assert math.fsum(shares.values()) == pytest.approx(cpu.undeclared, abs=1e-9)
    assert set(named) <= set(shares) <= {*named, NO_GROUP}


@given(times, cores, cores, groups)
def test_what_fits_is_not_scaled_and_the_rest_belongs_to_no_group(
    seen: CpuTimes, lras: float, batch: float, named: dict[str, float]
) -> None:
    cpu, shares = divide(seen, lras, batch, named, rest_is_kernel=False)
    busy = total(cpu) - cpu.idle - cpu.steal - cpu.kernel
    claimed = lras + batch + math.fsum(named.values())
    if claimed <= busy - 1e-6:
        assert (cpu.lras, cpu.batch) == (lras, batch)
        assert all(shares[name] == used for name, used in named.items() if name != NO_GROUP)
    elif claimed > busy + 1e-6:
        assert cpu.lras <= lras
        assert all(shares[name] <= used for name, used in named.items())


def test_own_use_leaves_out_what_groups_below_and_declared_ones_use() -> None:
    total_use = {"/s": 3.0, "/s/a": 1.0, "/s/a/x": 0.75, "/u": 0.5}
    declared = {"/s/db": 1.5, "/s/db/inner": 0.5, "/elsewhere": 4.0}
    assert own_use(total_use, declared) == pytest.approx({"/s": 0.5, "/s/a": 0.25, "/s/a/x": 0.75, "/u": 0.5})


def test_the_mean_of_several_accounts_is_weighted_with_time() -> None:
    short = HostAccount(1.0, 1.0, CpuAccount(4, 1, 0, 2, 0, 0, 1), (GroupUse("/hog", 2.0),))
    long = HostAccount(4.0, 3.0, CpuAccount(4, 1, 0, 0, 0, 0, 3), (GroupUse("/x", 0.0),), cpu_some_pct=7.0)
    mean = mean_account([short, long])
    assert (mean.interval_s, mean.cpu_some_pct, mean.at_s) == (4.0, 7.0, 4.0)
    assert total(mean.cpu) == pytest.approx(4.0)
    assert [(g.group, g.cpu_cores) for g in mean.undeclared] == [("/hog", 0.5), ("/x", 0.0)]


class Counting(RealFs):
    """Counts readings of usage files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    def open(self, path: str) -> KernelFile:
        fs = self
        inner = super().open(path)

        class File:
            def read(self) -> bytes:
                fs.reads[path] += 1
                return inner.read()

            def close(self) -> None:
                inner.close()

        return File()

    def read(self, path: str) -> bytes:
        self.reads[path] += 1
        return super().read(path)


class Tree:
    """A cgroup2 tree with counters of CPU time that tests let grow."""

    def __init__(self, root: Path) -> None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mounts").write_text("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self.top = root / "sys/fs/cgroup"
        self.top.mkdir(parents=True)
        (self.top / "cgroup.controllers").write_text("cpu memory\n")
        self.used: dict[str, float] = {}
        self.fs = Counting(root)
        self.now_s = 0.0
        self.reader = UndeclaredGroups(self.fs, discover(self.fs))

    def make(self, path: str) -> None:
        (self.top / path[1:]).mkdir(parents=True, exist_ok=True)
        self.used.setdefault(path, 0.0)
        self._write(path)

    def _write(self, path: str) -> None:
        usage_us = int(self.used[path] * 1e6)
        (self.top / path[1:] / "cpu.stat").write_text(f"usage_usec {usage_us}\nuser_usec 0\nsystem_usec 0\n")

    def spend(self, use: dict[str, float]) -> None:
        """Add CPU seconds to leaves and the groups above them."""
        for leaf, amount in use.items():
            path = leaf
            while path:
                if path in self.used:
                    self.used[path] += amount
                    self._write(path)
                path = path.rpartition("/")[0]

    def run(
        self, use: dict[str, float], declared: dict[str, float] | None = None, seconds: int = 1
    ) -> dict[str, float]:
        """Let leaves use so many CPUs for a while; the last answer."""
        found: dict[str, float] = {}
        for _ in range(seconds):
            self.now_s += 1.0
            self.spend(use)
            known = declared or {}
            undeclared_use = sum(use.values()) - sum(known.values())
            found = self.reader.read(self.now_s, known, undeclared_use, 8.0)
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_group_that_starts_to_run_is_found_at_once_among_many(tree: Tree) -> None:
    for n in range(100):
        tree.make(f"/g{n:03}")
    tree.run({}, seconds=30)
    found = tree.run({"/g077": 2.0}, seconds=2)
    assert found["/g077"] == pytest.approx(2.0, rel=0.01)
    assert sum(found.values()) == pytest.approx(2.0, rel=0.01)


def test_a_quiet_host_costs_few_readings_a_tick(tree: Tree) -> None:
    for n in range(200):
        tree.make(f"/g{n:03}")
    tree.run({}, seconds=5)
    tree.fs.reads.clear()
    tree.run({"/g000": 1.0}, seconds=int(LOOK_S))
    assert tree.fs.reads.total() <= (IN_TURN + 1) * LOOK_S + 2 * 200
    tree.fs.reads.clear()
    tree.run({"/g000": 1.0}, seconds=int(LOOK_S))
    assert tree.fs.reads.total() <= (IN_TURN + 1) * LOOK_S


def test_many_busy_groups_are_bounded_and_still_all_seen(tree: Tree) -> None:
    use = {f"/g{n:03}": 0.05 for n in range(100)}
    for path in use:
        tree.make(path)
    found = tree.run(use, seconds=int(100 / IN_TURN) + 5)
    assert sum(found.values()) == pytest.approx(5.0, rel=0.05)
    assert tree.reader.open_fds <= MOST_BUSY
    tree.reader.close()
    assert tree.reader.open_fds == 0


def test_use_that_no_group_explains_is_searched_for_ever_more_rarely(tree: Tree) -> None:
    for n in range(50):
        tree.make(f"/g{n:03}")
    for _ in range(120):
        tree.now_s += 1.0
        tree.reader.read(tree.now_s, {}, 4.0, 8.0)  # processes in no group
    assert tree.fs.reads.total() <= IN_TURN * 120 + 50 * 9


def test_groups_below_a_busy_one_and_beside_a_workload_are_told_apart(tree: Tree) -> None:
    for path in ("/s", "/s/db", "/s/cron", "/pods", "/pods/x", "/pods/y", "/quiet", "/quiet/z"):
        tree.make(path)
    use = {"/s/db": 1.0, "/s/cron": 0.5, "/pods/x": 2.0}
    found = tree.run(use, declared={"/s/db": 1.0}, seconds=int(LOOK_S) + 3)
    assert found["/s/cron"] == pytest.approx(0.5, rel=0.02)
    assert found["/pods/x"] == pytest.approx(2.0, rel=0.02)
    assert "/s/db" not in found
    assert "/quiet/z" not in found
    assert found.get("/s", 0.0) == pytest.approx(0.0, abs=0.02)


def test_a_group_that_goes_is_forgotten(tree: Tree) -> None:
    tree.make("/a")
    tree.make("/b")
    assert tree.run({"/a": 1.0, "/b": 1.0}, seconds=3).keys() == {"/a", "/b"}
    (tree.top / "b/cpu.stat").unlink()
    (tree.top / "b").rmdir()
    tree.used.pop("/b")
    assert tree.run({"/a": 1.0}, seconds=int(LOOK_S)).keys() == {"/a"}


def test_no_more_groups_than_the_bound_are_followed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undeclared, "MOST_GROUPS", 10)
    for n in range(40):
        tree.make(f"/g{n:03}")
    tree.run({}, seconds=10)
    assert sum(path.endswith("cpu.stat") for path in tree.fs.reads) == 10


@pytest.mark.parametrize(
    ("flags", "is_kernel"), [(2129984, True), (4194304, False)], ids=["kthreadd", "a shell"]
)
def test_time_of_no_group_is_the_kernels_if_only_kernel_threads_are_in_none(
    tree: Tree, flags: int, is_kernel: bool
) -> None:
    (tree.top / "cgroup.procs").write_text("2\n")
    folder = tree.top.parents[2] / "proc/2"
    folder.mkdir()
    (folder / "stat").write_text(f"2 (odd) name) S 0 0 0 0 -1 {flags} 0 0 0 0 0 4 0 0 20 0 1 0 3 0 0\n")
    accounts = HostAccounts(tree.fs, discover(tree.fs))
    seen = CpuTimes(8, 300.0, 0.0, 0.0, 500.0)
    accounts.read(1.0, seen, [], {})
    account = accounts.read(2.0, seen, [], {})
    assert account is not None
    assert (account.cpu.kernel, account.cpu.undeclared) == ((3.0, 0.0) if is_kernel else (0.0, 3.0))


def test_undeclared_pods_and_containers_have_names(tree: Tree) -> None:
    uid, container = "0a1b2c3d-0000-1111-2222-333344445555", "0f" * 32
    pod, docker = f"/kubepods/burstable/pod{uid}", f"/docker/{container}"
    for path in ("/kubepods", "/kubepods/burstable", pod, "/docker", docker, "/hog"):
        tree.make(path)
    root = tree.top.parents[2]
    config = root / f"var/lib/docker/containers/{container}/config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"Name": "/web"}')
    accounts = HostAccounts(tree.fs, discover(tree.fs))
    seen = CpuTimes(8, 300.0, 0.0, 0.0, 500.0)

    def named(seconds: int) -> dict[str, str]:
        account = None
        for _ in range(seconds):
            tree.now_s += 1.0
            tree.spend({pod: 1.0, docker: 1.0, "/hog": 1.0})
            account = accounts.read(tree.now_s, seen, [], {})
        assert account is not None
        return {item.group: item.name for item in account.undeclared if item.group != NO_GROUP}

    assert named(int(LOOK_S) + 10) == {pod: f"pod {uid}", docker: "web", "/hog": ""}
    (root / f"var/log/pods/shop_db-0_{uid}").mkdir(parents=True)
    assert named(6)[pod] == "shop/db-0"
    config.unlink()
    assert named(6) == {pod: "shop/db-0", docker: "web", "/hog": ""}
    accounts.close()


def test_the_line_names_what_uses_most(tmp_path: Path) -> None:
    cpu = CpuAccount(2.0, 0.4, 0.0, 1.3, 0.1, 0.0, 0.2)
    undeclared_use = (GroupUse("/hogs", 1.1), GroupUse(NO_GROUP, 0.199), GroupUse("/x", 0.001))
    pod = GroupUse("/kubepods.slice/kubepods-pod0a1b.slice", 0.1, name="shop/web-0")
    lines = host_lines(HostAccount(5.0, 1.0, cpu, (*undeclared_use, pod), cpu_some_pct=34.0))
    assert all(len(line) <= 80 for line in lines)
    line = "\n".join(lines)
    assert "1.8 of 2 CPUs busy" in line
    assert "undeclared: /hogs 1.1, processes in no group 0.2, shop/web-0 0.1" in line
    assert "wait for CPU 34%" in line
    assert "memory" not in line  # not measured

    store = Store(tmp_path / "s.sqlite", 3600.0, 1 << 24)
    store.start()
    store.add_host(100.0, HostAccount(5.0, 1.0, cpu, undeclared_use))
    store.close()
    rows = run_query(
        tmp_path / "s.sqlite", "select undeclared, json_extract(groups, '$.\"/hogs\"') from host"
    ).rows
    assert [tuple(row) for row in rows] == [(1.3, 1.1)]


def status_of(
    name: str, kind: Kind, memory_bytes: Reading, read: Reading, written: Reading
) -> WorkloadStatus:
    sample = Sample(
        name, 5.0, 1.0, memory_current_bytes=memory_bytes, read_bytes_per_s=read, write_bytes_per_s=written
    )
    spec = WorkloadSpec(name, kind, f"/{name}")
    return WorkloadStatus(spec, True, Mode.OBSERVE, sample, None, None, None, UNTOUCHED)


def test_memory_and_disks_are_divided_by_kind() -> None:
    cpu = CpuAccount(2.0, 0.4, 0.0, 1.3, 0.1, 0.0, 0.2)
    gib, mib = float(1 << 30), float(1 << 20)
    account = HostAccount(
        5.0, 1.0, cpu, memory_total_bytes=8 * gib, memory_available_bytes=3 * gib,
        disk_bytes_per_s=10 * mib, network_bytes_per_s=2 * mib,
    )  # fmt: skip
    workloads = (
        status_of("a", Kind.LRA, 2 * gib, 1 * mib, 2 * mib),
        status_of("b", Kind.LRA, 1 * gib, NOT_MEASURED, 0.0),
        status_of("c", Kind.BATCH, 0.0, 0.0, 9 * mib),
    )
    lines = host_lines(account, workloads)
    assert all(len(line) <= 80 for line in lines), lines
    assert "  memory: 5.0 GiB of 8.0 GiB used: LRAs 3.0 GiB, batch 0, others 2.0 GiB" in lines
    # Samples are of another second than the disks' counters: nothing is left to others, and nothing is negative.
    assert "  disks: 10.0 MiB/s: LRAs 3.0 MiB/s, batch 9.0 MiB/s, others 0" in lines
    assert "  network 2.0 MiB/s" in lines
    assert "  memory: 5.0 GiB of 8.0 GiB used" in host_lines(account), (
        "nobody is there: nothing is said of parts"
    )
    unknown = (status_of("a", Kind.LRA, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED),)
    assert "  memory: 5.0 GiB of 8.0 GiB used" in host_lines(account, unknown), "no part is made up"


@given(
    total=st.floats(0.0, 1e12),
    lras=st.lists(st.floats(0.0, 1e12), max_size=4),
    batch=st.lists(st.floats(0.0, 1e12), max_size=4),
)
def test_parts_of_a_total_are_never_negative_and_leave_nothing_out(
    total: float, lras: list[float], batch: list[float]
) -> None:
    parts = divided(total, lras, batch)
    assert parts is not None
    assert parts.others >= 0.0
    assert parts.lras + parts.batch + parts.others >= total * (1 - 1e-12)
