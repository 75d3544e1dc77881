"""Texts, comparison and decoding of every setting; what a group says can be set."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, KEEP, NO_LIMIT, Settings
from perphd.domain.cpuset import CpuSet
from perphd.domain.errors import ParseError
from perphd.domain.units import MAX_BYTES, page_floor_bytes
from perphd.host.cgroup import knobs
from perphd.host.cgroup.group import Cgroups, RawWrite, descendants
from tests.unit.isolation_kernel import FakeKernel


@given(st.integers(1, 10000))
def test_a_weight_survives_the_way_through_v1_shares(weight: int) -> None:
    assert knobs.weight_of_shares(knobs.shares_of(weight)) == weight


def test_shares_are_the_kernels_scale_and_never_below_its_least() -> None:
    assert [knobs.shares_of(w) for w in (1, 50, 100, 10000)] == [10, 512, 1024, 102400]


@pytest.mark.parametrize("weight", [0, -1, 10001])
def test_weights_out_of_range_are_refused(weight: int) -> None:
    with pytest.raises(ParseError, match="1 to 10000"):
        knobs.weight_text(weight, 2)


@given(st.integers(0, MAX_BYTES))
def test_memory_is_written_in_whole_pages_and_read_back_as_equal(size: int) -> None:
    text = knobs.memory_text(size)
    assert knobs.same("/g/memory.high", text, str(page_floor_bytes(size)))
    assert knobs.same("/g/memory.high", str(size), text)
    assert size < 4096 or not knobs.same("/g/memory.high", str(size), "0")
    assert knobs.decode("memory_high_bytes", 2, {"memory.high": text}) == page_floor_bytes(size)


@pytest.mark.parametrize("size", [-1, MAX_BYTES + 1])
def test_impossible_memory_sizes_are_refused(size: int) -> None:
    with pytest.raises(ParseError, match="bytes"):
        knobs.memory_text(size)


def test_no_limit_is_max_and_equals_no_number() -> None:
    assert knobs.memory_text(NO_LIMIT) == "max"
    assert not knobs.same("/g/memory.high", "max", "0")
    assert not knobs.same("/g/memory.high", "4096", "max")
    assert knobs.decode("memory_high_bytes", 2, {"memory.high": "max"}) is NO_LIMIT


@given(st.floats(0.01, 1000))
def test_cores_become_a_quota_of_the_period_that_is_there(cores: float) -> None:
    text = knobs.cpu_max_text(cores, "max 100000")
    read = knobs.decode("cpu_max_cores", 2, {"cpu.max": text})
    assert isinstance(read, float)
    assert abs(read - cores) <= 0.5 / 100000 + 1e-12


def test_a_period_too_short_for_the_quota_is_replaced_on_v2_and_refused_where_it_cannot_be() -> None:
    assert knobs.cpu_max_text(0.5, "max 1000") == "50000 100000"
    assert knobs.cpu_max_text(2.0, "max 1000") == "2000 1000"
    with pytest.raises(ParseError, match="period of 1000 us"):
        knobs.quota_us(0.5, 1000)


@pytest.mark.parametrize("cores", [0, -1, float("nan"), float("inf"), 0.001])
def test_impossible_core_counts_are_refused(cores: float) -> None:
    with pytest.raises(ParseError):
        knobs.cpu_max_text(cores, "max 100000")


def test_an_empty_cpu_set_is_never_a_confinement() -> None:
    with pytest.raises(ParseError, match="at least one CPU"):
        knobs.cpus_text(CpuSet())


@pytest.mark.parametrize(
    ("path", "wanted", "read", "equal"),
    [
        ("/g/cpuset.cpus", "0,1", "0-1", True),
        ("/g/cpuset.cpus", "0-1", "0", False),
        ("/g/cpuset.cpus", "0-1", "garbage", False),
        ("/g/cpu.max", "max 100000", "max  100000", True),
        ("/g/cpu.weight", "100", "0100", True),
        ("/g/cpu.weight", "100", "", False),
    ],
)
def test_read_back_is_compared_as_the_kernel_shows_it(path: str, wanted: str, read: str, equal: bool) -> None:
    assert knobs.same(path, wanted, read) is equal


@pytest.mark.parametrize(
    ("path", "less", "more"),
    [
        ("/g/cpu.max", "50000 100000", "60000 100000"),
        ("/g/cpu.max", "50000 100000", "max 100000"),
        ("/g/cpu.max", "50000 100000", "50000 50000"),
        ("/g/cpu.cfs_quota_us", "50000", "-1"),
        ("/g/memory.high", "9999999", "max"),
        ("/g/cpu.weight", "9", "10"),
    ],
)
def test_magnitude_tells_shrinking_from_growing(path: str, less: str, more: str) -> None:
    assert knobs.magnitude(path, less) < knobs.magnitude(path, more)


@pytest.mark.parametrize("text", ["", "max", "x y", "1 0", "0-"])
def test_decoding_nonsense_is_keep_and_magnitude_of_it_no_error(text: str) -> None:
    assert knobs.decode("cpu_max_cores", 2, {"cpu.max": text}) is KEEP
    knobs.magnitude("/g/cpu.max", text)


def test_v1_encodes_shares_quota_and_cpus() -> None:
    kernel = FakeKernel("v1")
    kernel.mkdir("/a")
    group = Cgroups(kernel, kernel.hierarchies).group("/a")
    wanted = Settings(cpus=CpuSet.of([1, 2]), cpu_weight=50, cpu_max_cores=1.5, memory_low_bytes=4096)
    assert group.encode(wanted) == [
        RawWrite("cpus", "/sys/fs/cgroup/cpuset/a/cpuset.cpus", "1-2"),
        RawWrite("cpu_weight", "/sys/fs/cgroup/cpu/a/cpu.idle", "0"),
        RawWrite("cpu_weight", "/sys/fs/cgroup/cpu/a/cpu.shares", "512"),
        RawWrite("cpu_max_cores", "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000"),
    ]
    reasons = group.enforceable()
    assert {name for name, why in reasons.items() if why is None} == {
        *("cpus", "mems", "cpu_weight", "cpu_max_cores", "io_weight", "io_max", "frozen")
    }
    assert "limit_in_bytes kills" in str(reasons["memory_high_bytes"])
    assert "no memory.low" in str(reasons["memory_low_bytes"])
    assert "resctrl" in str(reasons["llc_masks"])


def test_v2_encodes_every_setting() -> None:
    kernel = FakeKernel("v2")
    kernel.mkdir("/a")
    group = Cgroups(kernel, kernel.hierarchies).group("/a")
    wanted = Settings(CpuSet.of([0]), IDLE, 0.5, 5000, NO_LIMIT)
    assert [(write.path.rsplit("/", 1)[1], write.value) for write in group.encode(wanted)] == [
        ("cpuset.cpus", "0"),
        ("cpu.idle", "1"),
        ("cpu.max", "50000 100000"),
        ("memory.low", "4096"),
        ("memory.high", "max"),
    ]


def test_a_controller_that_the_parent_does_not_enable_is_named_with_its_remedy() -> None:
    kernel = FakeKernel("v2")
    kernel.mkdir("/system.slice")
    kernel.directories["/sys/fs/cgroup/system.slice"].files["cgroup.subtree_control"] = "cpu memory"
    kernel.mkdir("/system.slice/db.service")
    reasons = Cgroups(kernel, kernel.hierarchies).group("/system.slice/db.service").enforceable()
    assert "/sys/fs/cgroup/system.slice/cgroup.subtree_control does not enable the cpuset controller" in str(
        reasons["cpus"]
    )
    assert reasons["cpu_weight"] is None


def test_idle_without_cpu_idle_is_the_faintest_weight() -> None:
    for layout, expected in (("v1", "3"), ("v2", "1")):
        kernel = FakeKernel(layout)
        kernel.mkdir("/a")
        for path in kernel.paths("/a"):
            kernel.directories[path].files.pop("cpu.idle", None)
        writes = Cgroups(kernel, kernel.hierarchies).group("/a").encode(Settings(cpu_weight=IDLE))
        assert [write.value for write in writes] == [expected]


def test_a_group_knows_its_directories_identity_and_inhabitants() -> None:
    kernel = FakeKernel("hybrid")
    group = Cgroups(kernel, kernel.hierarchies).group("/a")
    assert (group.exists(), group.directories(), group.identity()) == (False, (), ())
    assert "does not exist" in str(group.knob("cpus"))
    kernel.mkdir("/a")
    kernel.mkdir("/a/tasks-of-b.slice")
    assert group.exists()
    assert len(group.directories()) == 6
    assert group.procs() == {4711}
    assert group.threads() == {4711, 4712}
    before = group.identity()
    kernel.rmdir("/a")
    kernel.mkdir("/a")
    assert group.identity() != before
    assert [entry[0] for entry in group.identity()] == [entry[0] for entry in before]


def test_a_controller_in_no_hierarchy_is_a_reason() -> None:
    kernel = FakeKernel("v2")
    kernel.directories["/sys/fs/cgroup"].files["cgroup.controllers"] = "cpu"
    kernel.mkdir("/a")
    knob = Cgroups(kernel, kernel.hierarchies).group("/a").knob("memory_high_bytes")
    assert knob == "the memory controller is in no mounted cgroup hierarchy"


def test_groups_nested_deeper_than_python_recurses_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 2 * sys.getrecursionlimit()
    kernel = FakeKernel("v2")
    deep = f"{'/a' * depth}"
    monkeypatch.setattr(kernel, "exists", lambda path: True)
    monkeypatch.setattr(
        kernel, "subdirectories", lambda path: ["a"] if len(path) < len(deep) else [], raising=False
    )
    found = descendants(kernel, "/a")
    assert (len(found), found[0], found[-1]) == (depth - 1, "/a/a", deep)


def test_parents_precede_their_children_and_siblings_keep_their_order() -> None:
    kernel = FakeKernel("v2")
    for group in ("/b", "/b/y", "/b/x", "/b/x/2", "/b/x/1"):
        kernel.mkdir(group)
    top = "/sys/fs/cgroup/b"
    assert descendants(kernel, top) == [f"{top}/x", f"{top}/x/1", f"{top}/x/2", f"{top}/y"]
