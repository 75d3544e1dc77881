"""What top and the dashboard show of a status: owners of cores and ways, rows, order of attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perphd.commands.render_status import BATCH_HEADS, LRA_HEADS, status_parts
from perphd.commands.view import Severity, Share, View, cpus_of_owner, score, severity, view_of
from perphd.config.file import Config
from perphd.control.table import plain
from perphd.domain.allocation import Settings
from perphd.domain.condition import BatchCondition, LraCondition
from perphd.domain.cpuset import CpuSet
from perphd.domain.decision import Health
from perphd.domain.status import AgentStatus, WorkloadStatus
from perphd.domain.workload import Kind
from tests.unit.control_fake import TOPOLOGY, FakeAgent


def status(**in_force: Settings) -> AgentStatus:
    """The fake agent's status with these settings in force."""
    found = FakeAgent(Config()).status()
    items = tuple(
        replace(item, present=True, in_force=in_force.get(item.spec.name, Settings()))
        for item in found.workloads
    )
    return replace(found, workloads=items)


def one(found: AgentStatus, name: str) -> WorkloadStatus:
    return next(item for item in found.workloads if item.spec.name == name)


def cpus(view: View) -> dict[str, str]:
    return {owner.name: str(cpus_of_owner(view, place)) for place, owner in enumerate(view.owners)}


def test_untouched_host_is_shared_by_all() -> None:
    view = view_of(status(), TOPOLOGY, 0.0)
    assert cpus(view) == {"shared": "0-7"}
    assert [cell.cpus for cell in view.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert {cell.l3 for cell in view.cores} == {0}
    assert view.ways == ()


def test_cores_belong_to_those_who_may_use_them() -> None:
    batch_confined = status(pi=Settings(cpus=CpuSet.parse("3,7")))
    assert cpus(view_of(batch_confined, TOPOLOGY, 0.0)) == {"LRAs": "0-2,4-6", "shared": "3,7"}
    apart = status(
        pi=Settings(cpus=CpuSet.parse("3,7")),
        db=Settings(cpus=CpuSet.parse("0-1,4-5")),
        cache=Settings(cpus=CpuSet.parse("2,6")),
    )
    view = view_of(apart, TOPOLOGY, 0.0)
    assert cpus(view) == {"db": "0-1,4-5", "cache": "2,6", "pi": "3,7"}
    shares = {owner.name: owner.share for owner in view.owners}
    assert shares == {"db": Share.LRA, "cache": Share.LRA, "pi": Share.BATCH}
    assert {owner.name: owner.letter for owner in view.owners} == {"db": "D", "cache": "C", "pi": "p"}


def test_half_of_a_core_is_shown_as_it_is() -> None:
    view = view_of(status(pi=Settings(cpus=CpuSet.parse("7"))), TOPOLOGY, 0.0)
    last = view.cores[-1]
    assert [view.owners[place].name for place in last.owners] == ["LRAs", "shared"]


def test_cpus_that_nobody_may_have() -> None:
    topology = replace(
        TOPOLOGY, online=CpuSet.parse("0-6"), offline=CpuSet.parse("7"), isolated=CpuSet.parse("0")
    )
    view = view_of(status(), topology, 0.0)
    assert cpus(view) == {"isolated": "0", "shared": "1-6", "offline": "7"}


def test_offline_cores_of_which_no_topology_is_known_come_last() -> None:
    topology = replace(TOPOLOGY, offline=CpuSet.parse("8-9"))
    view = view_of(status(), topology, 0.0)
    assert [cell.cpus for cell in view.cores][-2:] == [(8,), (9,)]
    assert cpus(view)["offline"] == "8-9"


def test_nobody_runs() -> None:
    gone = status()
    gone = replace(gone, workloads=tuple(replace(item, present=False) for item in gone.workloads))
    assert cpus(view_of(gone, TOPOLOGY, 0.0)) == {"free": "0-7"}


def test_ways_belong_to_those_whose_masks_have_them() -> None:
    found = status(pi=Settings(llc_masks=((0, 0b00001111),)), db=Settings(llc_masks=((0, 0b11110000),)))
    view = view_of(replace(found, llc_ways=8, llc_shareable=0b11000000), TOPOLOGY, 0.0)
    strip = view.ways[0]
    names = [view.owners[place].name for place in strip.owners]
    assert names == ["shared"] * 4 + ["LRAs"] * 4  # the other LRA has no mask: it may use all of them
    assert strip.shareable == (False,) * 6 + (True,) * 2
    alone = replace(found, workloads=tuple(i for i in found.workloads if i.spec.name != "cache"), llc_ways=8)
    strip = view_of(alone, TOPOLOGY, 0.0).ways[0]
    assert [view_of(alone, TOPOLOGY, 0.0).owners[place].name for place in strip.owners] == ["pi"] * 4 + [
        "db"
    ] * 4


def test_rows_say_what_status_says() -> None:
    found = status()
    view, shown = view_of(found, TOPOLOGY, 0.0), plain(status_parts(found, 0.0))
    for row, heads in ((view.lras[0], LRA_HEADS), (view.batch[0], BATCH_HEADS)):
        assert len(row.cells) == len(heads)
        assert all(str(cell) in shown for cell in row.cells)
    assert str(view.headline) in shown
    assert all(str(line) in shown for line in view.needs)


def test_given_and_wanted_of_batch() -> None:
    found = status()
    pi = one(found, "pi")
    assert pi.sample is not None
    pi = replace(pi, sample=replace(pi.sample, cpu_usage_cores=1.5, run_delay_cores=2.0))
    view = view_of(replace(found, workloads=(pi,)), TOPOLOGY, 0.0)
    assert (view.batch[0].given_cores, view.batch[0].wanted_cores) == (1.5, 3.5)


def test_score_is_performance_by_target() -> None:
    found = status()
    assert score(one(found, "db")) == pytest.approx(812.4 / 1206.0)
    assert score(one(found, "cache")) is None
    assert score(replace(one(found, "db"), present=False)) is None


@pytest.mark.parametrize(
    ("health", "condition", "expected"),
    [
        (Health.DEGRADED, "", Severity.BAD),
        (Health.SUSPECT, "", Severity.WATCH),
        (Health.HEALTHY, "", Severity.GOOD),
        (Health.UNKNOWN, "", Severity.QUIET),
        (Health.HEALTHY, LraCondition.BELOW_TARGET, Severity.WATCH),
        (Health.HEALTHY, LraCondition.STALLED, Severity.BAD),
        (Health.DEGRADED, LraCondition.NO_LOAD, Severity.QUIET),
        (Health.HEALTHY, BatchCondition.STARVED, Severity.WATCH),
        (Health.HEALTHY, BatchCondition.RUNNING, Severity.GOOD),
    ],
)
def test_severity(health: Health, condition: str, expected: Severity) -> None:
    item = one(status(), "db")
    assert item.decision is not None
    verdict = replace(item.decision.verdict, health=health)
    item = replace(item, decision=replace(item.decision, verdict=verdict), condition=condition)
    assert severity(item) is expected
    assert severity(replace(item, present=False)) is Severity.QUIET


def test_letters_are_never_the_same() -> None:
    found = status()
    spec = one(found, "db").spec
    items = tuple(
        replace(
            one(found, "db"),
            spec=replace(spec, name=f"db{n}", kind=Kind.LRA),
            in_force=Settings(cpus=CpuSet.of([n])),
        )
        for n in range(8)
    )
    view = view_of(replace(found, workloads=items), TOPOLOGY, 0.0)
    assert len({owner.letter for owner in view.owners}) == 8
