"""Samples from trees of all three layouts, through appearance, disappearance, return and damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perphd.domain.cpuset import CpuSet
from perphd.domain.reading import Reading, Unavailable, available, value_or
from perphd.domain.sample import READINGS, Quality, Sample
from perphd.domain.workload import Kind, SliSpec, WorkloadSpec
from perphd.host.schedstat import RunDelay
from perphd.monitor.files import BATCH_LOOK_EVERY
from perphd.monitor.sampler import LOOK_OVER_EVERY, Monitor
from perphd.monitor.sli import SliReading
from tests.unit.monitor_tree import Tree

LRA = WorkloadSpec("db", Kind.LRA, "/system.slice/db.service")
BATCH = WorkloadSpec("batch", Kind.BATCH, "/batch.slice")
TWO = CpuSet.of([0, 1])

RATES = {
    "cpu_usage_cores": 1.5,
    "cpu_throttled_pct": 40.0,
    "cpu_some_pct": 25.0,
    "memory_some_pct": 10.0,
    "memory_full_pct": 5.0,
    "io_some_pct": 1.0,
    "io_full_pct": 0.5,
    "refaults_per_s": 7.0,
    "major_faults_per_s": 3.0,
    "read_bytes_per_s": 4097.0,
    "write_bytes_per_s": 8192.0,
}
PSI = {"cpu_some_pct", "memory_some_pct", "memory_full_pct", "io_some_pct", "io_full_pct"}


@pytest.fixture(params=["v2", "v1", "hybrid"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, request.param)


def monitor(tree: Tree, **options) -> Monitor:
    return Monitor(tree.fs, tree.hierarchies, cpus=TWO, **options)


def one(watched: Monitor, now_s: float, spec: WorkloadSpec = LRA, **sli: SliReading) -> Sample:
    (sample,) = watched.sample(now_s, [spec], sli)
    return sample


def reason(reading: Reading) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


def test_first_sample_has_gauges_and_no_rates(tree: Tree):
    tree.make(LRA.cgroup, 5)
    sample = one(monitor(tree), 100.0)
    assert sample.quality == (Quality.FIRST,)
    assert (sample.at_s, sample.interval_s) == (100.0, 0.0)
    for field in RATES:
        assert not available(sample.reading(field))
    assert sample.memory_current_bytes == 123456
    kernel_memory = 7000 if tree.layout == "v2" else 0
    assert sample.memory_working_set_bytes == 100000 + 50000 + 7000 + 300 + kernel_memory
    assert sample.threads == 42


def test_rates_are_deltas_over_the_measured_interval(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 3)
    one(watched, 100.0)
    tree.make(LRA.cgroup, 5)
    sample = one(watched, 102.0)
    assert (sample.interval_s, sample.quality) == (2.0, ())
    for field, expected in RATES.items():
        if tree.layout == "v1" and field in PSI:
            assert "cgroup2" in reason(sample.reading(field))
        else:
            assert sample.reading(field) == pytest.approx(expected), field


def test_late_interval_is_flagged_and_still_right(tree: Tree):
    watched = monitor(tree, expected_period_s=0.5)
    tree.make(LRA.cgroup, 0)
    one(watched, 0.0)
    tree.make(LRA.cgroup, 3)
    sample = one(watched, 3.0)
    assert sample.quality == (Quality.LATE,)
    assert sample.cpu_usage_cores == pytest.approx(1.5)


def test_counter_that_goes_backwards_has_no_rate_and_is_based_anew(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 5)
    one(watched, 0.0)
    tree.make(LRA.cgroup, 2)
    sample = one(watched, 1.0)
    for field in ("cpu_usage_cores", "cpu_throttled_pct", "read_bytes_per_s", "refaults_per_s"):
        assert reason(sample.reading(field)) == "the counter went backwards"
    tree.make(LRA.cgroup, 3)
    assert one(watched, 2.0).cpu_usage_cores == pytest.approx(1.5)


def test_same_instant_twice_is_no_division_by_zero(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 0)
    one(watched, 1.0)
    tree.make(LRA.cgroup, 1)
    assert "no time has passed" in reason(one(watched, 1.0).cpu_usage_cores)
    assert one(watched, 2.0).cpu_usage_cores == pytest.approx(1.5)


def test_workload_that_does_not_exist_yet_is_gone_until_it_appears(tree: Tree):
    watched = monitor(tree)
    absent = one(watched, 0.0)
    assert absent.quality == (Quality.GONE,)
    assert all(not available(absent.reading(name)) for name in READINGS)
    assert LRA.cgroup in reason(absent.cpu_usage_cores)
    tree.make(LRA.cgroup, 1)
    assert one(watched, 1.0).quality == (Quality.FIRST,)
    tree.make(LRA.cgroup, 2)
    assert one(watched, 2.0).quality == ()


def test_vanished_cgroup_gives_its_descriptors_back_and_is_found_again(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 5)
    one(watched, 0.0)
    assert watched.open_fds > 0
    tree.remove(LRA.cgroup)
    assert one(watched, 1.0).quality == (Quality.GONE,)
    assert watched.open_fds == 0
    tree.make(LRA.cgroup, 1)
    back = one(watched, 2.0)
    assert back.quality == (Quality.RESTARTED, Quality.FIRST)
    assert reason(back.cpu_usage_cores).startswith("first reading")
    assert back.threads == 42
    tree.make(LRA.cgroup, 2)
    after = one(watched, 3.0)
    assert after.quality == ()
    assert after.cpu_usage_cores == pytest.approx(1.5)


def test_cgroup_replaced_between_two_samples_is_restarted_at_once(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 5)
    one(watched, 0.0)
    held = watched.open_fds
    tree.remove(LRA.cgroup)
    tree.make(LRA.cgroup, 9)  # larger counters than before: a difference would look like a rate
    sample = one(watched, 1.0)
    assert sample.quality == (Quality.RESTARTED, Quality.FIRST)
    assert all(not available(sample.reading(field)) for field in RATES)
    assert sample.memory_current_bytes == 123456
    assert watched.open_fds == held


def test_replacement_that_reading_does_not_show_is_seen_when_looked_over(tmp_path: Path):
    from perphd.host.fs import RealFs

    tree = Tree(tmp_path, "v2")
    # Plain files stay readable after removal.
    watched = Monitor(RealFs(tmp_path), tree.hierarchies, cpus=TWO)
    tree.make(LRA.cgroup, 1)
    one(watched, 0.0)
    tree.remove(LRA.cgroup)
    tree.make(LRA.cgroup, 2)
    flags = [one(watched, 1.0 + n).quality for n in range(LOOK_OVER_EVERY)]
    assert flags.count((Quality.RESTARTED, Quality.FIRST)) == 1


def test_file_of_a_disabled_controller_is_missing_alone_and_comes_back(tmp_path: Path):
    tree = Tree(tmp_path, "v2")
    watched = monitor(tree)
    tree.make(LRA.cgroup, 1)
    one(watched, 0.0)
    (tmp_path / "sys/fs/cgroup" / LRA.cgroup[1:] / "io.stat").unlink()
    lost = one(watched, 1.0)
    assert lost.quality == ()
    assert "io.stat" in reason(lost.read_bytes_per_s)
    assert lost.threads == 42
    tree.make(LRA.cgroup, 2)
    samples = [one(watched, 2.0 + n) for n in range(LOOK_OVER_EVERY + 1)]
    assert available(samples[-1].read_bytes_per_s)
    assert all(sample.quality == () for sample in samples)


def test_psi_that_is_switched_off_is_unavailable(tmp_path: Path):
    tree = Tree(tmp_path, "v2")
    tree.make(LRA.cgroup, 1)
    for name in ("cpu", "memory", "io"):
        (tmp_path / "sys/fs/cgroup" / LRA.cgroup[1:] / f"{name}.pressure").unlink()
    watched = monitor(tree)
    one(watched, 0.0)
    tree.make("/other", 0)
    sample = one(watched, 1.0)
    assert "cpu.pressure does not exist" in reason(sample.cpu_some_pct)
    assert available(sample.cpu_usage_cores)


def test_v2_group_without_the_cpu_controller_has_usage_but_no_throttling(tmp_path: Path):
    tree = Tree(tmp_path, "v2")
    tree.make(LRA.cgroup, 0)
    path = f"/sys/fs/cgroup{LRA.cgroup}/cpu.stat"
    tree.put(path, "usage_usec 0\nuser_usec 0\nsystem_usec 0\n")
    watched = monitor(tree)
    one(watched, 0.0)
    tree.put(path, "usage_usec 500000\nuser_usec 0\nsystem_usec 0\n")
    sample = one(watched, 1.0)
    assert sample.cpu_usage_cores == pytest.approx(0.5)
    assert "cpu controller is not enabled" in reason(sample.cpu_throttled_pct)


def test_without_quota_nothing_is_throttled(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 1)
    one(watched, 0.0)
    assert one(watched, 1.0).cpu_throttled_pct == 0.0


@pytest.mark.parametrize(
    "text", ["", "garbage", "anon\n", "anon 12", "\x00\xff", "usage_usec -5\n", "1_000\n"]
)
def test_damaged_files_are_unavailable_and_do_not_stop_the_sample(tree: Tree, text: str):
    tree.make(LRA.cgroup, 1)
    for directory in tree.directories(LRA.cgroup):
        for file in directory.iterdir():
            file.write_bytes(text.encode("latin-1"))
    watched = monitor(tree)
    one(watched, 0.0)
    sample = one(watched, 1.0)
    io = ("read_bytes_per_s", "write_bytes_per_s")
    for name in READINGS:
        # An empty io.stat is what a cgroup without any I/O has.
        if not (text == "" and name in io and tree.layout == "v2"):
            assert not available(sample.reading(name)), name


def test_hybrid_workload_in_some_hierarchies_only(tmp_path: Path):
    tree = Tree(tmp_path, "hybrid")
    tree.make(LRA.cgroup, 1)
    for name in ("memory", "cpuacct", "pids"):
        directory = tmp_path / "sys/fs/cgroup" / name / LRA.cgroup[1:]
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    tree.put(f"/sys/fs/cgroup/unified{LRA.cgroup}/cgroup.threads", "1\n2\n3\n")
    watched = monitor(tree)
    one(watched, 0.0)
    tree.make("/elsewhere", 0)
    tree.put(f"/sys/fs/cgroup/unified{LRA.cgroup}/cpu.stat", "usage_usec 1750000\n")
    sample = one(watched, 1.0)
    assert sample.cpu_usage_cores == pytest.approx(0.25)  # from the unified tree instead
    assert sample.threads == 3.0
    assert "not in the hierarchy at /sys/fs/cgroup/memory" in reason(sample.memory_current_bytes)
    assert available(sample.cpu_some_pct)


def test_thread_list_is_not_taken_for_a_group_with_children(tmp_path: Path):
    tree = Tree(tmp_path, "v2")
    tree.make(LRA.cgroup, 1)
    (tmp_path / "sys/fs/cgroup" / LRA.cgroup[1:] / "pids.current").unlink()
    tree.put(f"/sys/fs/cgroup{LRA.cgroup}/cgroup.threads", "1\n2\n")
    tree.put(f"/sys/fs/cgroup{LRA.cgroup}/child/cgroup.procs", "7\n")
    assert not available(one(monitor(tree), 0.0).threads)


def test_host_without_cgroups_says_so(tmp_path: Path):
    tree = Tree(tmp_path, "none")
    assert one(monitor(tree), 0.0).quality == (Quality.GONE,)


def test_workloads_taken_off_the_list_are_forgotten(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 1)
    tree.make(BATCH.cgroup, 1)
    samples = watched.sample(0.0, [LRA, BATCH], {})
    assert [sample.workload for sample in samples] == ["db", "batch"]
    both = watched.open_fds
    watched.sample(1.0, [BATCH], {})
    assert 0 < watched.open_fds < both
    assert watched.sample(2.0, [LRA, BATCH], {})[0].quality == (Quality.FIRST,)
    watched.close()
    assert watched.open_fds == 0


def test_changed_cgroup_of_a_name_starts_anew(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 1)
    tree.make("/other.slice", 7)
    one(watched, 0.0)
    moved = WorkloadSpec("db", Kind.LRA, "/other.slice")
    assert one(watched, 1.0, moved).quality == (Quality.FIRST,)


def test_two_monitors_do_not_disturb_each_other(tree: Tree):
    slow, fast = monitor(tree), monitor(tree)
    tree.make(LRA.cgroup, 0)
    one(slow, 0.0), one(fast, 0.0)
    tree.make(LRA.cgroup, 1)
    assert one(fast, 1.0).cpu_usage_cores == pytest.approx(1.5)
    tree.make(LRA.cgroup, 2)
    fast.close()
    sample = one(slow, 2.0)
    assert sample.cpu_usage_cores == pytest.approx(1.5)
    assert sample.interval_s == 2.0


def test_sli_goes_into_the_sample_and_its_silence_is_flagged(tree: Tree):
    watched = monitor(tree)
    tree.make(LRA.cgroup, 1)
    with_sli = WorkloadSpec("db", Kind.LRA, LRA.cgroup, sli=SliSpec("push"))
    told = one(watched, 0.0, with_sli, db=SliReading(work_rate_per_s=120.0))
    assert told.work_rate_per_s == 120.0
    assert Quality.SLI_MISSING not in told.quality
    silent = one(watched, 1.0, with_sli, db=SliReading.missing(Unavailable("refused")))
    assert silent.quality == (Quality.SLI_MISSING,)
    assert reason(silent.latency_p95_ms) == "refused"
    assert one(watched, 2.0, with_sli).quality == (Quality.SLI_MISSING,)
    assert "no SLI is configured" in reason(one(watched, 3.0).work_rate_per_s)


class FakeDelay:
    """Threads that waited 300 ms since the last reading."""

    def __init__(self) -> None:
        self.pids: list[list[int]] = []
        self.closed = False
        self.fds = 1
        self.answer: RunDelay | Unavailable = RunDelay(300_000_000, 1, 1)

    def update(self, pids: list[int]) -> None:
        self.pids.append(pids)

    def read(self) -> RunDelay | Unavailable:
        return self.answer

    def close(self) -> None:
        self.closed = True


def test_run_delay_of_lras_from_the_whole_subtree(tree: Tree):
    made: list[FakeDelay] = []

    def make() -> FakeDelay:
        made.append(FakeDelay())
        return made[-1]

    watched = monitor(tree, run_delay=make)
    tree.make(LRA.cgroup, 1)
    tree.make(BATCH.cgroup, 1)
    directory = tree.hierarchies.all()[0].path(LRA.cgroup)
    tree.put(f"{directory}/cgroup.procs", "10\n11\n")
    tree.put(f"{directory}/worker/cgroup.procs", "12\n")
    first, _ = watched.sample(0.0, [LRA, BATCH], {})
    assert reason(first.run_delay_cores).startswith("first reading")
    sample, batch = watched.sample(2.0, [LRA, BATCH], {})
    assert sample.run_delay_cores == pytest.approx(0.15)
    assert made[0].pids[-1] == [10, 11, 12]
    assert "LRAs only" in reason(batch.run_delay_cores)
    assert len(made) == 1
    made[0].answer = Unavailable("refused")
    assert reason(watched.sample(3.0, [LRA, BATCH], {})[0].run_delay_cores) == "refused"
    tree.remove(LRA.cgroup)
    watched.sample(4.0, [LRA, BATCH], {})
    assert made[0].closed


def test_run_delay_is_said_to_be_unused_without_a_reader(tree: Tree):
    tree.make(LRA.cgroup, 1)
    assert "not measured on this host" in reason(one(monitor(tree), 0.0).run_delay_cores)


def test_of_batch_the_stalls_that_nobody_decides_by_are_means_over_a_few_samples(tmp_path: Path):
    tree = Tree(tmp_path, "hybrid")
    watched = monitor(tree)
    tree.make(BATCH.cgroup, 0)
    one(watched, 0.0, BATCH)
    looks, before = [1], None
    for n in range(1, 4 * BATCH_LOOK_EVERY):
        tree.make(BATCH.cgroup, n * (n + 1) // 2)  # busier from second to second
        sample = one(watched, float(n), BATCH)
        assert sample.cpu_usage_cores == pytest.approx(1.5 * n)
        assert sample.cpu_some_pct == pytest.approx(min(100.0, 25.0 * n))
        if before is not None and sample.io_some_pct != before:
            last = looks[-1]
            grown = (n * (n + 1) - last * (last + 1)) / 2
            assert sample.io_some_pct == pytest.approx(grown / (n - last))
            looks.append(n)
        before = sample.io_some_pct
        assert n - looks[-1] < BATCH_LOOK_EVERY
    assert len(looks) in (4, 5)


@pytest.mark.parametrize("seed", range(5))
def test_batch_that_sleeps_at_times_reads_as_if_everything_were_read_at_every_sample(tree: Tree, seed: int):
    dice = random.Random(seed)
    paced, whole = monitor(tree), monitor(tree)
    everything = WorkloadSpec("batch", Kind.LRA, BATCH.cgroup)
    seldom = {"cpu_throttled_pct", "memory_some_pct", "memory_full_pct", "io_some_pct", "io_full_pct"}
    step = 0
    tree.make(BATCH.cgroup, step)
    for n in range(40):
        if dice.random() < 0.4:
            step += dice.randrange(1, 4)
            tree.make(BATCH.cgroup, step)
        got, wanted = one(paced, float(n), BATCH), one(whole, float(n), everything)
        for name in READINGS:
            if name not in seldom and name != "run_delay_cores":
                assert got.reading(name) == wanted.reading(name), (n, name)


def test_what_changes_although_batch_sleeps_is_seen_soon_and_everything_once_it_runs(tree: Tree):
    watched = monitor(tree)
    tree.make(BATCH.cgroup, 1)
    for n in range(4):
        assert one(watched, float(n), BATCH).threads == 42.0
    directory = next(d for d in tree.directories(BATCH.cgroup) if (d / "pids.current").exists())
    (directory / "pids.current").write_text("43\n")  # somebody moved one in
    seen = [value_or(one(watched, 4.0 + n, BATCH).threads, -1.0) for n in range(BATCH_LOOK_EVERY)]
    assert seen == sorted(seen)
    assert (seen[-1], len(set(seen))) == (43.0, 2)
    tree.make(BATCH.cgroup, 2)
    sample = one(watched, 4.0 + BATCH_LOOK_EVERY, BATCH)
    assert sample.threads == 42.0
    assert sample.cpu_usage_cores == pytest.approx(1.5)
    assert sample.read_bytes_per_s == pytest.approx(4097.0)  # all of it since it runs again
    tree.remove(BATCH.cgroup)
    assert one(watched, 5.0 + BATCH_LOOK_EVERY, BATCH).quality == (Quality.GONE,)


def test_sleeping_batch_of_which_more_memory_is_used_is_read_whole(tree: Tree):
    watched = monitor(tree)
    tree.make(BATCH.cgroup, 1)
    for n in range(4):
        one(watched, float(n), BATCH)
    name = "memory.current" if tree.layout == "v2" else "memory.usage_in_bytes"
    (directory,) = (d for d in tree.directories(BATCH.cgroup) if (d / name).exists())
    stat = (directory / "memory.stat").read_text()
    for n in range(4, 4 + BATCH_LOOK_EVERY):
        (directory / name).write_text(f"{1000 * n}\n")
        (directory / "memory.stat").write_text(stat.replace("active_file 7000", f"active_file {n}"))
        sample = one(watched, float(n), BATCH)
        kernel_memory = 7000 if tree.layout == "v2" else 0
        assert sample.memory_working_set_bytes == 100000 + 50000 + n + 300 + kernel_memory
