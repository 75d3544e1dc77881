"""The pure planner: order of writes, what shrinks and grows, and v1's rule that children lie within parents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.allocation import IDLE, KEEP
from perphd.domain.cpuset import CpuSet
from perphd.domain.plan import NotEnforceable, Stage
from perphd.host.cgroup.group import Knob
from perphd.host.cgroup.knobs import Value
from perphd.isolation.planner import FileState, KnobReading, Wanted, plan


def state(
    setting: str, version: int, workload: str = "w", around: str = "0-3", **files: tuple[str, str | None]
) -> KnobReading:
    names = {name: name.replace("__", ".", 1) for name in files}
    states = tuple(
        FileState(f"/cg/{workload}/{names[n]}", now, original) for n, (now, original) in files.items()
    )
    knob = Knob(setting, version, f"/cg/{workload}", tuple(file.path for file in states))
    return KnobReading(workload, knob, states, around)


def steps(*wanted: Wanted) -> list[tuple[str, str, Stage]]:
    return [(write.path.removeprefix("/cg/"), write.value, write.stage) for write in plan(wanted).writes]


def test_donors_shrink_before_receivers_grow_and_demotion_comes_first() -> None:
    batch = state("cpus", 2, "batch", cpuset__cpus=("0-3", None))
    lra = state("cpus", 2, "lra", cpuset__cpus=("2-3", ""))
    weight = state("cpu_weight", 2, "batch", cpu__weight=("100", None), cpu__idle=("0", None))
    rises = state("cpu_weight", 2, "lra", cpu__weight=("50", "100"), cpu__idle=("0", "0"))
    protect = state("memory_low_bytes", 2, "lra", memory__low=("0", None))
    squeeze = state("memory_high_bytes", 2, "batch", memory__high=("max", None))
    assert steps(
        Wanted(lra, CpuSet.of([1, 2, 3])),
        Wanted(rises, 100),
        Wanted(protect, 1 << 20),
        Wanted(batch, CpuSet.of([0])),
        Wanted(weight, IDLE),
        Wanted(squeeze, 1 << 20),
    ) == [
        ("batch/cpu.idle", "1", Stage.DEMOTE),
        ("batch/cpuset.cpus", "0", Stage.SHRINK),
        ("batch/memory.high", "1048576", Stage.SHRINK),
        ("lra/cpuset.cpus", "1-3", Stage.GROW),
        ("lra/memory.low", "1048576", Stage.GROW),
        ("lra/cpu.weight", "100", Stage.PROMOTE),
    ]


def test_of_nested_groups_parents_widen_first_and_children_narrow_first() -> None:
    def nested(setting: str, file: str, now: str, original: str) -> tuple[KnobReading, KnobReading]:
        outer = state(setting, 2, "a", "0-3", **{file: (now, original)})
        return outer, state(setting, 2, "a/b", "0-3", **{file: (now, original)})

    outer, inner = nested("memory_low_bytes", "memory__low", "8192", "0")
    for pair in ((outer, inner), (inner, outer)):
        assert [path for path, _, _ in steps(*(Wanted(item, 1 << 20) for item in pair))] == [
            "a/memory.low",
            "a/b/memory.low",
        ]
        assert [path for path, _, _ in steps(*(Wanted(item, 4096) for item in pair))] == [
            "a/b/memory.low",
            "a/memory.low",
        ]


def test_nothing_to_do_is_an_empty_change_set() -> None:
    same = [
        Wanted(state("cpus", 2, cpuset__cpus=("0-1", "0-3")), CpuSet.of([0, 1])),
        Wanted(state("cpus", 2, cpuset__cpus=("", None)), CpuSet.of(range(4))),
        Wanted(state("cpu_weight", 1, cpu__shares=("512", "1024"), cpu__idle=("0", None)), 50),
        Wanted(state("cpu_weight", 1, cpu__shares=("3", "1024"), cpu__idle=("1", "0")), IDLE),
        Wanted(state("cpu_max_cores", 2, cpu__max=("50000 100000", "max 100000")), 0.5),
        Wanted(state("memory_high_bytes", 2, memory__high=("4096", "max")), 5000),
        Wanted(state("cpus", 2, cpuset__cpus=("0-1", None)), KEEP),
        Wanted(state("cpu_weight", 2, cpu__weight=("7", None), cpu__idle=("0", None)), KEEP),
        Wanted(state("memory_low_bytes", 2, memory__low=("0", "0")), KEEP),
    ]
    assert not plan(same)


def test_leaving_idle_writes_idle_before_the_weight_that_it_resets() -> None:
    idle = state("cpu_weight", 2, cpu__weight=("0", "250"), cpu__idle=("1", "0"))
    assert steps(Wanted(idle, 20)) == [
        ("w/cpu.idle", "0", Stage.PROMOTE),
        ("w/cpu.weight", "20", Stage.PROMOTE),
    ]
    assert steps(Wanted(idle, KEEP)) == [
        ("w/cpu.idle", "0", Stage.PROMOTE),
        ("w/cpu.weight", "250", Stage.PROMOTE),
    ]


def test_a_group_that_was_idle_goes_back_to_idle_without_touching_its_weight() -> None:
    demoted = state("cpu_weight", 2, cpu__weight=("20", "0"), cpu__idle=("0", "1"))
    assert steps(Wanted(demoted, KEEP)) == [("w/cpu.idle", "1", Stage.DEMOTE)]


def test_moving_to_overlapping_cpus_gives_before_it_takes() -> None:
    assert steps(Wanted(state("cpus", 2, cpuset__cpus=("0-1", "")), CpuSet.of([1, 2]))) == [
        ("w/cpuset.cpus", "1", Stage.SHRINK),
        ("w/cpuset.cpus", "1-2", Stage.GROW),
    ]


def test_moving_a_single_group_to_other_cpus_is_one_write() -> None:
    assert steps(Wanted(state("cpus", 1, cpuset__cpus=("0", "0-3")), CpuSet.of([1]))) == [
        ("w/cpuset.cpus", "1", Stage.GROW)
    ]


def test_an_empty_original_is_given_back_once_and_all_of_the_parents_cpus_are_as_good() -> None:
    assert steps(Wanted(state("cpus", 2, cpuset__cpus=("0", "")), KEEP)) == [
        ("w/cpuset.cpus", "", Stage.GROW)
    ]
    for now in ("", "0-3", "0-7"):
        assert not plan([Wanted(state("cpus", 2, cpuset__cpus=(now, "")), KEEP)])


def test_values_that_cannot_be_are_skipped_with_a_reason_and_the_rest_goes_on() -> None:
    changes = plan(
        [
            Wanted(state("cpus", 2, around="0-1", cpuset__cpus=("", None)), CpuSet.of([5])),
            Wanted(state("cpus", 2, cpuset__cpus=("", None)), CpuSet()),
            Wanted(state("cpu_max_cores", 2, cpu__max=("max 100000", None)), 0.0001),
            Wanted(state("memory_low_bytes", 2, memory__low=("0", None)), 4096),
        ]
    )
    assert [write.value for write in changes.writes] == ["4096"]
    assert [left.knob for left in changes.skipped] == ["cpus", "cpus", "cpu_max_cores"]
    assert changes.skipped[0].reason == "none of the CPUs 5 is among 0-1, the only ones that /cg has"


def test_v1_takes_only_what_the_parent_has() -> None:
    limited = state("cpus", 1, around="0-1", cpuset__cpus=("0", "0-3"))
    assert steps(Wanted(limited, CpuSet.of(range(4)))) == [("w/cpuset.cpus", "0-1", Stage.GROW)]


@pytest.mark.parametrize("version", [1, 2])
def test_cpus_stay_within_what_the_operator_gave(version: int) -> None:
    around = "0-7"
    lra = state("cpus", version, around=around, cpuset__cpus=("4-7", None))
    assert steps(Wanted(lra, CpuSet.of(range(6)))) == [("w/cpuset.cpus", "4-5", Stage.SHRINK)]
    held = state("cpus", version, around=around, cpuset__cpus=("4-5", "4-7"))
    assert not plan([Wanted(held, CpuSet.of(range(6)))])
    assert steps(Wanted(held, CpuSet.of(range(7)))) == [("w/cpuset.cpus", "4-6", Stage.GROW)]


@pytest.mark.parametrize("version", [1, 2])
def test_cpus_that_the_operator_pinned_elsewhere_are_left_alone_with_the_reason(version: int) -> None:
    batch = state("cpus", version, around="0-7", cpuset__cpus=("0-3", None))
    target = CpuSet.of(range(4, 8))
    changes = plan([Wanted(batch, target)])
    assert not changes
    assert changes.skipped == (
        NotEnforceable("w", "cpus", "the operator pinned it to 0-3, which has none of 4-7"),
    )
    held = state("cpus", version, around="0-7", cpuset__cpus=("0-1", "0-3"))
    assert steps(Wanted(held, target)) == [("w/cpuset.cpus", "0-3", Stage.GROW)], (
        "an earlier target goes back"
    )
    assert not plan([Wanted(replace(held, foreign=True), target)])


@pytest.mark.parametrize(
    ("version", "found", "target", "wanted"),
    [
        (2, ("100", "1"), 25, []),
        (2, ("100", "1"), IDLE, []),
        (2, ("2", "0"), 25, []),
        (2, ("50", "0"), 100, []),
        (2, ("100", "0"), 200, [("w/cpu.weight", "200", Stage.PROMOTE)]),
        (2, ("400", "0"), 200, [("w/cpu.weight", "200", Stage.DEMOTE)]),
        (2, ("100", "1"), 200, [("w/cpu.idle", "0", Stage.PROMOTE), ("w/cpu.weight", "200", Stage.PROMOTE)]),
        (2, ("100", "0"), IDLE, [("w/cpu.idle", "1", Stage.DEMOTE)]),
        (2, ("100", "0"), 25, [("w/cpu.weight", "25", Stage.DEMOTE)]),
        (1, ("3", "1"), 25, []),
        (1, ("20", "0"), 25, []),
        (1, ("2048", "0"), 100, [("w/cpu.shares", "1024", Stage.DEMOTE)]),
        (1, ("1024", "0"), IDLE, [("w/cpu.idle", "1", Stage.DEMOTE)]),
    ],
)
def test_a_weight_is_never_raised_above_what_was_found_but_for_a_floor(
    version: int, found: tuple[str, str], target: Value, wanted: list[tuple[str, str, Stage]]
) -> None:
    weight, idle = found
    name = "cpu__shares" if version == 1 else "cpu__weight"
    group = state("cpu_weight", version, "w", "", **{name: (weight, None), "cpu__idle": (idle, None)})
    assert steps(Wanted(group, target)) == wanted


def test_a_weight_rises_to_what_was_found_and_no_further() -> None:
    held = state("cpu_weight", 2, cpu__weight=("20", "80"), cpu__idle=("0", "0"))
    assert steps(Wanted(held, 100)) == [("w/cpu.weight", "80", Stage.PROMOTE)]
    idle = state("cpu_weight", 1, cpu__shares=("3", "512"), cpu__idle=("1", "0"))
    assert steps(Wanted(idle, 100)) == [
        ("w/cpu.idle", "0", Stage.PROMOTE),
        ("w/cpu.shares", "512", Stage.PROMOTE),
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_without_idle_in_the_kernel_a_fainter_weight_stays(version: int) -> None:
    name = "cpu__shares" if version == 1 else "cpu__weight"
    faint, fainter = ("3", "2") if version == 1 else ("1", "1")
    assert not plan([Wanted(state("cpu_weight", version, "w", "", **{name: (fainter, None)}), IDLE)])
    assert steps(Wanted(state("cpu_weight", version, "w", "", **{name: ("50", None)}), IDLE)) == [
        (f"w/{name.replace('__', '.')}", faint, Stage.DEMOTE)
    ]


cpu_sets = st.sets(st.integers(0, 3), min_size=1).map(CpuSet.of)
TREE = ("/cg/w", "/cg/w/a", "/cg/w/a/x", "/cg/w/b")


@st.composite
def trees(draw: st.DrawFn) -> dict[str, CpuSet]:
    cpus: dict[str, CpuSet] = {}
    for path in TREE:
        above = cpus.get(path.rsplit("/", 1)[0], CpuSet.of(range(4)))
        cpus[path] = draw(cpu_sets) & above or above
    return cpus


@given(now=trees(), originals=st.none() | trees(), target=cpu_sets | st.just(KEEP))
def test_v1_trees_move_through_valid_states_only(
    now: dict[str, CpuSet], originals: dict[str, CpuSet] | None, target: Value
) -> None:
    files = tuple(
        FileState(f"{path}/cpuset.cpus", str(now[path]), None if originals is None else str(originals[path]))
        for path in TREE
    )
    root = KnobReading("w", Knob("cpus", 1, TREE[0], (files[0].path,)), files, "0-3")
    held = {f"{path}/cpuset.cpus": cpus for path, cpus in now.items()}
    for write in plan([Wanted(root, target)]).writes:
        assert write.before == str(held[write.path])
        held[write.path] = CpuSet.parse(write.value)
        for path in TREE[1:]:
            parent = path.rsplit("/", 1)[0]
            assert held[f"{path}/cpuset.cpus"] <= held[f"{parent}/cpuset.cpus"], write
    end = {path: held[f"{path}/cpuset.cpus"] for path in TREE}
    base = now if originals is None else originals
    if not isinstance(target, CpuSet) or not target & base[TREE[0]]:
        assert end == base
    else:
        assert end[TREE[0]] == target & base[TREE[0]]
        for path in TREE[1:]:
            above = end[path.rsplit("/", 1)[0]]
            assert end[path] == (base[path] & above or above)
