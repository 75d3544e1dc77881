"""Moving threads until all are there, while they fork, end, and while others move them, too."""

from __future__ import annotations

import errno

import pytest

from perphd.sim.kernel.resctrl import Fault, Interference, Operation
from rdt import DEFAULT_GROUP, Broken, Denied, GroupRef, Invalid
from tests.unit.rdt_world import World

KERNELS = pytest.mark.parametrize("machine", ["captured", "captured-6.12"])


@KERNELS
def test_all_threads_of_a_process_are_moved(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    filled = groups.fill(own, [10, 11, 12, 13])
    assert filled.moved == world.tids("perphd.a") == {10, 11, 12, 13}
    assert (filled.complete, filled.passes) == (True, 1)
    assert groups.fill(own, [10, 11, 12, 13]).passes == 0
    # 6.1 refuses the list once and is then given one thread at a time.
    assert len([path for path, _ in world.writes if path.endswith("tasks")]) == (
        4 if machine == "captured" else 1
    )
    assert groups.resctrl._tasks.takes_lists is (machine != "captured")


@KERNELS
def test_processes_that_fork_meanwhile_are_followed(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    generation = [10]

    def threads():
        if generation[0] < 14:
            generation[0] += 1
            child = 100 * generation[0]
            world.threads.start(child)
            world.tree.forked(12, child)
        return world.threads.threads()

    filled = groups.fill(own, threads)
    assert filled.complete
    assert world.tids("perphd.a") == set(world.threads.threads())


@KERNELS
def test_threads_that_end_are_no_error(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    world.tree.faults.add(Interference(Operation.WRITE, "*/tasks", lambda: world.threads.end(10)))
    filled = groups.fill(own, [1, 2, 10, 13, 77, 4000])
    assert filled.gone >= {10, 77, 4000}
    assert filled.moved == world.tids("perphd.a") == {1, 2}
    assert filled.complete


def test_a_list_goes_on_behind_the_thread_that_ended():
    world = World("captured-6.12")
    groups = world.groups()
    own = groups.make("a").group
    groups.fill(own, [1, 5, 10, 11, 12])
    assert [text for path, text in world.writes if path.endswith("tasks")] == ["10,11,12"]
    assert world.tids("perphd.a") == {1, 10, 11, 12}


@KERNELS
def test_zombies_are_told_and_not_waited_for(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    world.threads.start(50)
    world.threads.end(50, zombie=True)
    filled = groups.fill(own, [1, 50])
    assert (set(filled.moved), set(filled.zombies), filled.passes) == ({1}, {50}, 2)
    assert filled.complete


def test_a_task_that_somebody_moves_away_again_is_a_straggler():
    world = World()
    groups = world.groups()
    own = groups.make("a").group

    def back(path: str, text: str) -> None:
        if path.endswith("perphd.a/tasks"):
            world.write("tasks", "2\n")

    world.fs.on_write = back
    filled = groups.fill(own, [1, 2])
    assert (set(filled.stragglers), set(filled.zombies)) == ({2}, set())
    assert not filled.complete
    assert filled.passes == groups.limits.fill_passes


def test_others_tasks_are_left_unless_told():
    world = World()
    world.mkdir("other")
    world.mkdir("mon_groups/watch")
    world.write("other/tasks", "1\n")
    world.write("mon_groups/watch/tasks", "2\n")
    groups = world.groups()
    own = groups.make("a").group
    filled = groups.fill(own, [1, 2, 10])
    assert (set(filled.moved), set(filled.left_to_others)) == ({10}, {1, 2})
    assert world.tids("other") == {1}
    assert groups.fill(own, [1, 2, 10], take_from_others=True).complete
    assert world.tids("perphd.a") == {1, 2, 10}


@KERNELS
def test_a_monitor_group_is_filled_by_way_of_its_control_group(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    monitor = groups.make_monitor(own, "m").group
    filled = groups.fill(monitor, [10, 11, 99])
    assert (set(filled.moved), set(filled.gone)) == ({10, 11}, {99})
    assert world.tids("perphd.a") == world.tids("perphd.a/mon_groups/perphd.m") == {10, 11}
    # Those in the monitor group are in the control group as well: nothing to do.
    assert groups.fill(own, [10, 11]).passes == 0


@KERNELS
def test_a_task_pulled_out_of_the_control_group_in_between(machine):
    world = World(machine)
    groups = world.groups()
    own = groups.make("a").group
    monitor = groups.make_monitor(own, "m").group
    groups.fill(own, [10, 11, 12])
    world.tree.faults.add(
        Interference(Operation.WRITE, "*/perphd.m/tasks", lambda: world.write("tasks", "11\n"))
    )
    filled = groups.fill(monitor, [10, 11, 12])
    assert filled.complete
    assert world.tids("perphd.a/mon_groups/perphd.m") == {10, 11, 12}


def test_monitoring_without_allocation():
    world = World("monitoring-only")
    groups = world.groups()
    monitor = groups.make_monitor(DEFAULT_GROUP, "m").group
    assert groups.fill(monitor, [1, 10]).complete
    assert world.tids("mon_groups/perphd.m") == {1, 10}


def test_tasks_are_given_back_to_where_they_were():
    world = World()
    world.mkdir("other")
    groups = world.groups()
    own = groups.make("a").group
    groups.fill(own, [1, 2])
    released = groups.release([1, 10], to=GroupRef("other"))
    assert released.moved == world.tids("other") == {1}  # 10 was in no own group
    assert groups.release([2]).moved == {2}
    assert world.tids("perphd.a") == set()


def test_what_is_no_thread_of_this_namespace():
    world = World()
    groups = world.groups()
    own = groups.make("a").group
    assert groups.fill(own, [0, 1]).moved == {1}
    with pytest.raises(Invalid, match="not a thread id"):
        groups.resctrl.move_tasks(own, [0])


def test_real_failures_are_raised():
    world = World()
    groups = world.groups()
    own = groups.make("a").group
    world.tree.faults.add(Fault(Operation.WRITE, "*/tasks", errno.EIO))
    with pytest.raises(Broken):
        groups.fill(own, [1])
    world.fs.uid = 65534
    with pytest.raises(Denied):
        groups.fill(own, [1])
    world.fs.uid = 0
    assert groups.fill(own, [1]).complete


def test_very_many_threads_are_written_in_parts():
    world = World("captured-6.12")
    groups = world.groups()
    own = groups.make("a").group
    many = range(1_000_000, 1_002_000)
    world.threads.start(*many)
    assert groups.fill(own, many).complete
    written = [text for path, text in world.writes if path.endswith("tasks")]
    assert len(written) > 1
    assert all(len(text) < 4096 for text in written)
