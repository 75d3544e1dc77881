"""Groups of one program: idempotent, within budgets, and never anybody else's."""

from __future__ import annotations

import errno

import pytest

from perphd.sim.kernel.resctrl import Fault, Operation
from rdt import (
    DEFAULT_GROUP,
    Broken,
    Busy,
    Denied,
    Full,
    Gone,
    GroupRef,
    Invalid,
    Limits,
    Mismatch,
    Schemata,
    Unsupported,
)
from tests.unit.rdt_world import World

OTHER = GroupRef("other")


def test_making_and_removing_say_whether_there_was_something_to_do():
    groups = World().groups()
    first, second = groups.make("redis"), groups.make("redis")
    assert (first.created, second.created) == (True, False)
    assert first.identity == second.identity
    assert first.group == GroupRef("perphd.redis")
    assert (groups.remove(first.group), groups.remove(first.group)) == (True, False)
    assert groups.make("redis").identity != first.identity


def test_groups_of_an_earlier_life_are_adopted():
    world = World()
    made = world.groups().make("a/b")
    world.groups().make_monitor(made.group, "m")
    later = world.groups()
    assert [later.key(group) for group in later.survey().own] == ["a/b", "m"]
    assert not later.make("a/b").created


def test_the_survey_tells_who_holds_what():
    world = World()
    world.mkdir("other")
    world.mkdir("other/mon_groups/theirs")
    groups = world.groups()
    groups.make_monitor(groups.make("a").group, "m")
    groups.make_monitor(DEFAULT_GROUP, "all")
    survey = groups.survey()
    assert survey.own == (GroupRef("", "perphd.all"), GroupRef("perphd.a"), GroupRef("perphd.a", "perphd.m"))
    assert survey.others == (OTHER, GroupRef("other", "theirs"))
    assert (survey.closids_used, survey.closids_free, survey.rmids_used) == (3, 5, 6)
    assert str(survey) == (
        "3 of 8 CLOSIDs are taken: 1 by the default group, 1 by own groups (perphd.a), 1 by others (other); "
        "6 of 64 RMIDs"
    )


def test_no_closid_left_names_the_holders():
    world = World()
    groups = world.groups()
    for number in range(3):
        groups.make(f"own{number}")
    for number in range(4):
        world.mkdir(f"pod{number}")
    with pytest.raises(Full, match=r"3 by own groups \(perphd.own0, .*4 by others \(pod0, pod1") as caught:
        groups.make("one-more")
    assert (caught.value.errno, caught.value.status) == (errno.ENOSPC, "Out of CLOSIDs")
    assert not groups.make("own1").created


def test_a_closid_may_be_kept_free_for_others():
    groups = World("four-closids").groups(limits=Limits(spare_closids=1))
    groups.make("a")
    groups.make("b")
    with pytest.raises(Full, match="1 CLOSIDs are kept free") as caught:
        groups.make("c")
    assert caught.value.errno is None


def test_own_rmids_are_budgeted():
    groups = World("four-closids").groups(limits=Limits(rmid_share=0.05))  # of 48: two
    made = groups.make("a")
    groups.make_monitor(made.group, "m")
    with pytest.raises(Full, match="5% of 48 RMIDs and already hold 2"):
        groups.make_monitor(made.group, "n")


def out_of_rmids(world: World) -> None:
    for number in range(63):
        world.mkdir(f"mon_groups/n{number}")
    world.tree.account("mon_groups/n5", 0, llc_bytes=16 << 20)
    world.fs.rmdir("/sys/fs/resctrl/mon_groups/n5")
    world.tree.account_rmid(6, 0, llc_bytes=16 << 20)


def test_an_rmid_in_limbo_is_waited_for():
    world = World("captured-6.12")
    out_of_rmids(world)
    groups = world.groups()
    assert groups.make("a").created
    assert 0.1 <= sum(world.slept_s) <= 3.0


def test_waiting_for_limbo_ends():
    world = World()
    world.tree.faults.add(Fault(Operation.MKDIR, "*", errno.EBUSY, "Out of RMIDs", times=None))
    with pytest.raises(Busy) as caught:
        world.groups(limits=Limits(busy_wait_s=2.0)).make("a")
    assert caught.value.status.endswith("Out of RMIDs")
    assert 1.5 <= sum(world.slept_s) <= 2.0


def test_no_rmid_at_all_is_full():
    world = World()
    for number in range(63):
        world.mkdir(f"mon_groups/n{number}")
    with pytest.raises(Full) as caught:
        world.groups().make_monitor(DEFAULT_GROUP, "m")
    assert caught.value.status == "Out of RMIDs"
    assert "64 of 64 RMIDs" in str(caught.value)


def test_the_control_group_comes_before_its_monitor_group():
    groups = World().groups()
    with pytest.raises(Gone):
        groups.make_monitor(groups.control("a"), "m")
    groups.make("a")
    assert groups.make_monitor(groups.control("a"), "m").created


def test_what_the_machine_does_not_offer():
    with pytest.raises(Unsupported, match="no monitoring"):
        World("no-monitoring").groups().make_monitor(DEFAULT_GROUP, "m")
    only = World("monitoring-only").groups()
    with pytest.raises(Unsupported, match="nothing can be allocated"):
        only.make("a")
    assert only.make_monitor(DEFAULT_GROUP, "m").created


def test_nobody_elses_group_is_touched():
    world = World()
    world.mkdir("other")
    world.write("other/cpus_list", "3\n")
    groups = world.groups()
    own = groups.make("a").group
    world.writes.clear()
    for group in (OTHER, GroupRef("other", "perphd.m"), DEFAULT_GROUP):
        for change in (
            lambda group=group: groups.remove(group),
            lambda group=group: groups.apply(group, Schemata.of({"L3": {0: 1}})),
            lambda group=group: groups.ensure(group, Schemata.of({"L3": {0: 1}})),
            lambda group=group: groups.set_mode(group, "exclusive"),
            lambda group=group: groups.set_cpus(group, {1}),
            lambda group=group: groups.fill(group, {1}),
        ):
            with pytest.raises(Denied):
                change()
    with pytest.raises(Denied, match=r"CPUs \[3\] belong to other"):
        groups.set_cpus(own, {2, 3})
    assert world.writes == []
    assert groups.sweep() == (own,)
    assert groups.survey().others == (OTHER,)


def test_the_default_group_is_changed_only_if_allowed():
    world = World()
    groups = world.groups(change_default=True)
    applied = groups.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 0x7F0}}))
    groups.apply(DEFAULT_GROUP, applied.undo)
    assert world.text("schemata").endswith("L3:0=7ff;1=7ff\n")
    with pytest.raises(Denied):
        groups.remove(DEFAULT_GROUP)
    with pytest.raises(Denied):
        groups.fill(DEFAULT_GROUP, {1})


def test_anothers_monitor_group_inside_keeps_a_group():
    world = World()
    groups = world.groups()
    own = groups.make("a").group
    world.mkdir("perphd.a/mon_groups/theirs")
    with pytest.raises(Denied, match="theirs"):
        groups.remove(own)
    assert groups.sweep() == ()
    assert groups.remove(own, with_others_monitors=True)


def test_sweeping_keeps_what_is_named_and_where_it_lies():
    groups = World().groups()
    for key in ("a", "b"):
        for monitor in ("m", "n"):
            groups.make_monitor(groups.make(key).group, monitor)
    kept = groups.monitor(groups.control("a"), "m")
    assert len(groups.sweep(keep=[kept])) == 4
    assert groups.survey().own == (kept.parent, kept)


def test_cpus_of_a_group():
    world = World()
    groups = world.groups()
    a, b = groups.make("a").group, groups.make("b").group
    changed = groups.set_cpus(a, {0, 2})
    assert (set(changed.before), set(changed.after)) == (set(), {0, 2})
    assert world.text("cpus_list") == "1,3\n"
    groups.set_cpus(b, {2})
    assert groups.resctrl.cpus(a) == {0}
    groups.set_cpus(a, set())
    assert world.text("cpus_list") == "0-1,3\n"
    with pytest.raises(Invalid) as caught:
        groups.set_cpus(a, {99})
    assert caught.value.status == "Bad CPU list/mask"
    with pytest.raises(Invalid):
        groups.set_cpus(a, {-1})
    monitor = groups.make_monitor(b, "m").group
    assert groups.set_cpus(monitor, {2}).after == {2}
    groups.remove(b)
    assert world.text("cpus_list") == "0-3\n"


def test_a_cpu_taken_back_at_once_is_noticed():
    world = World()
    groups = world.groups()
    own = groups.make("a").group

    def meddle(path: str, text: str) -> None:
        world.fs.on_write = None
        world.write("cpus_list", "0-3\n")

    world.fs.on_write = meddle
    with pytest.raises(Mismatch, match="it is empty"):
        groups.set_cpus(own, {1})


def test_a_broken_kernel_is_told_as_such():
    world = World()
    groups = world.groups()
    own = groups.make("a").group
    world.tree.faults.add(Fault(Operation.WRITE, "*/schemata", errno.EIO))
    with pytest.raises(Broken) as caught:
        groups.apply(own, Schemata.of({"L3": {0: 3}}))
    assert caught.value.actual == groups.resctrl.schemata(own)
    assert groups.apply(own, Schemata.of({"L3": {0: 3}})).wrote


def test_a_group_removed_by_somebody_else_is_gone():
    world = World()
    groups = world.groups()
    own = groups.make("a").group
    world.fs.rmdir("/sys/fs/resctrl/perphd.a")
    for use in (
        lambda: groups.ensure(own, Schemata.of({"L3": {0: 3}})),
        lambda: groups.fill(own, {1}),
        lambda: groups.set_cpus(own, {1}),
        lambda: groups.set_mode(own, "exclusive"),
    ):
        with pytest.raises(Gone):
            use()


def test_the_lock_is_not_held_while_waiting():
    world = World()
    world.tree.faults.add(Fault(Operation.MKDIR, "*", errno.EBUSY, "Out of RMIDs", times=2))
    groups = world.groups()
    seen = []

    def others_turn(seconds: float) -> None:
        with world.fs.lock("/sys/fs/resctrl", exclusive=True, timeout_s=0.0):
            seen.append(seconds)

    groups._sleep = others_turn
    assert groups.make("a").created
    assert seen == [0.1, 0.2]


def test_locks_may_be_nested_but_not_upgraded():
    resctrl = World().open()
    with resctrl.changing(), resctrl.changing(), resctrl.reading():
        resctrl.apply(DEFAULT_GROUP, Schemata.of({"L3": {0: 1}}))
    with pytest.raises(RuntimeError, match="use changing"), resctrl.reading(), resctrl.changing():
        pass
