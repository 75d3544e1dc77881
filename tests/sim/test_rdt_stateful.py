"""Random lives of one program's groups on the simulated kernel, where everything that can go wrong does.

Beside the program under test, which uses ``rdt``, there are: a stranger who writes without asking for the lock, in
groups of its own and in ours; CPUs that go and come; processes that start, fork and end; and a kernel that refuses
operations. Held at every step:

- no exception but a ``ResctrlError`` gets out;
- what the stranger has (schemata, mode, CPUs, tasks, groups) changes by the stranger's acts and the machine's alone;
- what ``rdt`` reports, by result or by error, is what the tree then shows;
- at the end all can be put back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perphd.domain.cpuset import CpuSet
from perphd.sim.kernel.faces import RawFs
from perphd.sim.kernel.resctrl import MACHINES, Fault, Interference, Operation, ResctrlTree, Threads
from perphd.sim.kernel.vfs import Directory
from rdt import (
    DEFAULT_GROUP,
    Applied,
    Broken,
    Busy,
    Denied,
    Filled,
    Full,
    Gone,
    GroupRef,
    Groups,
    Invalid,
    Limits,
    Mismatch,
    Resctrl,
    ResctrlError,
    Schemata,
    Unsupported,
)
from rdt.names import parse_cpus
from rdt.schemata import differences, is_cache

ROOT = "/sys/fs/resctrl"
MACHINE_NAMES = (
    "captured",
    "captured-6.12",
    "sparse-ids",
    "cdp",
    "mba-mbps",
    "amd",
    "snc",
    "no-monitoring",
    "four-closids",
    "mb-only",
    "monitoring-only",
)
KEYS = ("a", "b/c")
STRANGERS = ("other", "perphd", "perphd.not%Escaped")  # the last two merely begin as ours do
ERRNOS = (
    errno.EBUSY,
    errno.ENOSPC,
    errno.ESRCH,
    errno.EIO,
    errno.ENODEV,
    errno.ENOENT,
    errno.EPERM,
    errno.EINVAL,
)
PATHS = (
    "*",
    "*/schemata",
    "schemata",
    "*/tasks",
    "tasks",
    "*/cpus_list",
    "perphd.*",
    "mon_groups/*",
    "*/mode",
)


class FailingFs(RawFs):
    """Calls that the tree's own fault plan does not reach: they fail once, when told to."""

    failing: dict[str, int]

    def _maybe_fail(self, call: str) -> None:
        number = self.failing.pop(call, None)
        if number is not None:
            raise (
                TimeoutError("held")
                if call == "lock" and number == errno.EBUSY
                else OSError(number, "injected")
            )

    def listdir(self, path: str) -> list[str]:
        self._maybe_fail("listdir")
        return super().listdir(path)

    def identity(self, path: str) -> tuple[int, int]:
        self._maybe_fail("identity")
        return super().identity(path)

    @contextmanager
    def lock(self, path, *, exclusive, timeout_s):
        self._maybe_fail("lock")
        with super().lock(path, exclusive=exclusive, timeout_s=timeout_s):
            yield


@dataclass(frozen=True)
class Outcome:
    """What an operation ended with, and whether anything happened in between."""

    result: Any
    error: ResctrlError | None
    undisturbed: bool


class LifeOfGroups(RuleBasedStateMachine):
    rightful: dict[str, tuple[str, ...]]

    @initialize(name=st.sampled_from(MACHINE_NAMES), spare=st.integers(0, 1))
    def start(self, name: str, spare: int) -> None:
        self.directory = Directory()
        self.threads = Threads(((1,), (2,), (10, 11, 12), (20,), (30,)))
        self.machine = MACHINES[name]
        self.tree = ResctrlTree(self.machine, self.directory.make(ROOT), self.threads)
        self.tree.mount()
        self.raw = RawFs(self.directory)  # the stranger's and the checks' hands
        self.fs = FailingFs(self.directory)
        self.fs.failing = {}
        self.original = self.raw_schemata("")
        self.next_pid = 100
        self.resctrl = Resctrl.open(self.fs, ROOT, lock_timeout_s=0.0)
        self.info = self.resctrl.info
        self.groups = Groups(
            self.resctrl,
            "perphd",
            limits=Limits(spare_closids=spare, busy_wait_s=1.5, fill_passes=4),
            change_default=True,
            sleep=self.pass_time,
            clock=lambda: self.tree.now_s,
        )
        self.stranger_does(lambda: self.raw.mkdir(f"{ROOT}/other"))
        self.stranger_does(lambda: self.raw_write("other/tasks", "20\n"))
        self.stranger_does(lambda: self.raw_write("other/cpus_list", f"{max(self.machine.cpus)}\n"))
        for key in KEYS:
            with suppress(Full, Unsupported):
                self.groups.make(key)
        if self.info.monitoring:
            within = self.groups.control("a") if self.info.can_control else DEFAULT_GROUP
            self.groups.make_monitor(within, "m")

    # --- hands and eyes beside rdt -------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.tree.now_s += seconds

    @contextmanager
    def nothing_interferes(self) -> Iterator[None]:
        """What waits to go wrong waits for the program under test, not for the stranger or the checks."""
        waiting, self.tree.faults.waiting = self.tree.faults.waiting, []
        try:
            yield
        finally:
            self.tree.faults.waiting = waiting

    def raw_text(self, path: str) -> str:
        with self.nothing_interferes():
            return self.raw.read(f"{ROOT}/{path}").decode()

    def raw_write(self, path: str, text: str) -> None:
        self.raw.write(f"{ROOT}/{path}", text.encode())

    def raw_schemata(self, group: str) -> Schemata:
        return Schemata.parse(self.raw_text(f"{group}/schemata".lstrip("/")))

    def raw_tasks(self, group: GroupRef) -> set[int]:
        return set(map(int, self.raw_text(f"{group.relative}/tasks".lstrip("/")).split()))

    def raw_groups(self) -> set[str]:
        def groups_in(path: str) -> list[str]:
            names = self.raw.listdir(f"{ROOT}/{path}") if self.raw.exists(f"{ROOT}/{path}") else []
            return [f"{path}{name}" for name in names if self.raw.exists(f"{ROOT}/{path}{name}/tasks")]

        controls = groups_in("")
        monitors = [path for control in ("", *(f"{each}/" for each in controls))
                    for path in groups_in(f"{control}mon_groups/")]  # fmt: skip
        return {"", *controls, *monitors}

    def strangers_groups(self) -> set[str]:
        return {
            path
            for path in self.raw_groups()
            if path and any(part in (*STRANGERS, "watch") for part in path.split("/"))
        }

    def strangers_state(self) -> dict[str, tuple[str, ...]]:
        names = ("schemata", "mode", "cpus_list", "tasks")
        return {
            path: tuple(
                self.raw_text(f"{path}/{name}")
                for name in names
                if "mon_groups" not in path or name in ("cpus_list", "tasks")
            )
            for path in self.strangers_groups()
        }

    def stranger_does(self, act: Callable[[], None]) -> None:
        """An act that is not ours; what it does to the stranger's things is then their rightful state."""
        if hasattr(self, "rightful"):
            assert self.strangers_state() == self.rightful
        with self.nothing_interferes(), suppress(OSError):
            act()
        self.rightful = self.strangers_state()

    def attempt(self, operation: Callable[[], object]) -> Outcome:
        """An operation of the program under test: it ends well or with a ResctrlError."""
        happened = len(self.tree.faults.told), len(self.fs.failing)
        result: Any = None
        error: ResctrlError | None = None
        try:
            result = operation()
        except ResctrlError as caught:
            error = caught
            assert str(error)
            assert error.path.startswith(ROOT)
        return Outcome(result, error, happened == (len(self.tree.faults.told), len(self.fs.failing)))

    # --- the program under test ----------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS))
    def make(self, key: str) -> None:
        path = f"perphd.{key.replace('/', '%2f')}"
        before = path in self.raw_groups()
        outcome = self.attempt(lambda: self.groups.make(key))
        if outcome.error is None:
            assert path in self.raw_groups()
            assert outcome.result.identity == self.raw.identity(f"{ROOT}/{path}")
            if outcome.undisturbed:
                assert outcome.result.created is not before
        elif outcome.undisturbed:
            assert isinstance(outcome.error, Full | Busy if self.info.can_control else Unsupported)
            assert path not in self.raw_groups()

    @rule(key=st.sampled_from((*KEYS, "")), name=st.sampled_from(("m", "n")))
    def make_monitor(self, key: str, name: str) -> None:
        within = self.groups.control(key) if key else DEFAULT_GROUP
        group = self.groups.monitor(within, name)
        outcome = self.attempt(lambda: self.groups.make_monitor(within, name))
        if outcome.error is None:
            assert group.relative in self.raw_groups()
        elif outcome.undisturbed:
            assert isinstance(outcome.error, Full | Busy | Gone | Unsupported)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        group = data.draw(self.targets().filter(lambda each: each != self.groups.control("a")))
        outcome = self.attempt(lambda: self.groups.remove(group))
        if outcome.error is None:
            assert group.relative not in self.raw_groups()
            if not outcome.undisturbed and hasattr(self, "rightful"):
                # The kernel removes what a stranger made inside after the look: nobody can prevent that.
                inside = f"{group.relative}/"
                self.rightful = {k: v for k, v in self.rightful.items() if not k.startswith(inside)}
        elif outcome.undisturbed:
            assert isinstance(outcome.error, Denied)  # a stranger watches inside, or it is not ours

    @rule(data=st.data(), how=st.sampled_from(("apply", "ensure")))
    def change_schemata(self, data: st.DataObject, how: str) -> None:
        group = data.draw(self.targets().filter(lambda each: not each.monitor))
        wanted = data.draw(self.schematas())
        exists = group.relative in self.raw_groups()
        before = self.raw_schemata(group.relative) if exists else None
        outcome = self.attempt(lambda: getattr(self.groups, how)(group, wanted))
        now = self.raw_schemata(group.relative) if group.relative in self.raw_groups() else None
        if isinstance(outcome.result, Applied):
            assert outcome.result.after == now
            if how == "apply":
                assert outcome.result.absent == ()
        else:
            assert outcome.error is not None
            if outcome.error.actual is not None:
                assert outcome.error.actual == now
            if outcome.undisturbed:
                assert now == before
                assert not isinstance(outcome.error, Broken)
                assert how == "apply" or not exists or not isinstance(outcome.error, Gone)

    @rule(data=st.data())
    def change_and_undo(self, data: st.DataObject) -> None:
        group = data.draw(self.targets().filter(lambda each: not each.monitor))
        wanted = data.draw(self.schematas())
        first = self.attempt(lambda: self.groups.ensure(group, wanted))
        if isinstance(first.result, Applied) and first.undisturbed:
            second = self.attempt(lambda: self.groups.apply(group, first.result.undo))
            if second.undisturbed:
                assert second.error is None
                assert self.raw_schemata(group.relative) == first.result.before

    @rule(data=st.data())
    def change_schemata_while_the_stranger_does(self, data: st.DataObject) -> None:
        group = self.groups.control("a")
        wanted = data.draw(self.schematas())
        write = data.draw(st.sampled_from(self.strangers_lines()))
        meddle = Interference(
            Operation.WRITE,
            f"{group.relative}/schemata",
            lambda: self.later(
                Operation.READ,
                f"{group.relative}/schemata",
                0,
                lambda: self.stranger_does(lambda: self.raw_write(f"{group.relative}/schemata", write)),
            ),
        )
        self.nothing_fails_any_more()
        self.tree.faults.add(meddle)
        outcome = self.attempt(lambda: self.groups.apply(group, wanted))
        if group.relative in self.raw_groups():
            now = self.raw_schemata(group.relative)
            if isinstance(outcome.result, Applied):
                assert outcome.result.after == now
                assert not differences(wanted, now, self.info)
            elif isinstance(outcome.error, Mismatch):
                assert outcome.error.actual == now
        self.nothing_fails_any_more()

    @rule(data=st.data(), mode=st.sampled_from(("shareable", "exclusive")))
    def set_mode(self, data: st.DataObject, mode: str) -> None:
        group = data.draw(self.targets().filter(lambda each: not each.monitor))
        outcome = self.attempt(lambda: self.groups.set_mode(group, mode))
        if outcome.error is None:
            assert self.raw_text(f"{group.relative}/mode".lstrip("/")) == f"{mode}\n"

    @rule(data=st.data())
    def set_cpus(self, data: st.DataObject) -> None:
        group = data.draw(self.targets())
        cpus = data.draw(st.frozensets(st.sampled_from(sorted(self.machine.cpus)), max_size=3))
        outcome = self.attempt(lambda: self.groups.set_cpus(group, cpus))
        if outcome.error is None:
            shown = parse_cpus(self.raw_text(f"{group.relative}/cpus_list".lstrip("/")))
            assert shown == outcome.result.after == cpus
        elif outcome.undisturbed:
            assert isinstance(outcome.error, Denied | Invalid | Gone)

    @rule(data=st.data(), forks=st.integers(0, 2))
    def fill(self, data: st.DataObject, forks: int) -> None:
        group = data.draw(self.targets())
        pids = data.draw(st.frozensets(st.sampled_from(sorted(self.threads._processes)), max_size=3))
        left = [forks]
        known = {tid for pid in pids for tid in self.threads._processes[pid]}

        def source() -> set[int]:
            """The threads that a cgroup's file would show: without zombies and those that have ended."""
            if left[0] and known:
                left[0] -= 1
                known.add(self.fork(min(known)))
            return {tid for tid in known if tid in set(self.threads.threads())}

        outcome = self.attempt(lambda: self.groups.fill(group, source))
        if isinstance(outcome.result, Filled) and outcome.undisturbed:
            filled = outcome.result
            members = self.raw_tasks(group)
            living = known & set(self.threads.threads())
            assert filled.moved <= members
            assert living - members == filled.stragglers | filled.left_to_others
            assert not filled.stragglers or left[0]
        elif outcome.undisturbed:
            assert isinstance(outcome.error, Denied | Gone)

    @rule(tids=st.frozensets(st.sampled_from((1, 2, 10, 20, 30, 77)), max_size=3))
    def fill_with_fixed_threads(self, tids: frozenset[int]) -> None:
        group = self.groups.control("a")
        outcome = self.attempt(lambda: self.groups.fill(group, tids))
        if isinstance(outcome.result, Filled) and outcome.undisturbed:
            filled = outcome.result
            assert tids <= self.raw_tasks(group) | filled.gone | filled.zombies | filled.left_to_others
            assert not filled.gone & set(self.threads.threads())

    @rule(tids=st.frozensets(st.sampled_from((1, 2, 10, 20, 30)), max_size=3))
    def release(self, tids: frozenset[int]) -> None:
        outcome = self.attempt(lambda: self.groups.release(tids))
        if outcome.undisturbed:
            assert outcome.error is None
            ours = {tid for path in self.raw_groups() - self.strangers_groups() if path.startswith("perphd.")
                    for tid in self.raw_tasks(GroupRef(path.partition("/")[0]))}  # fmt: skip
            assert not tids & ours

    @rule()
    def survey(self) -> None:
        outcome = self.attempt(self.groups.survey)
        if outcome.undisturbed:
            assert outcome.error is None
            seen = {group.relative for group in (*outcome.result.own, *outcome.result.others)}
            assert seen == self.raw_groups() - {""}
            assert {group.relative for group in outcome.result.others} == self.strangers_groups()

    @rule(keep=st.sampled_from(KEYS))
    def sweep(self, keep: str) -> None:
        kept = self.groups.control(keep)
        outcome = self.attempt(lambda: self.groups.sweep([kept]))
        if outcome.undisturbed:
            assert outcome.error is None
            assert not {group.relative for group in outcome.result} & self.raw_groups()

    @rule()
    def start_again(self) -> None:
        """A new life of the program: everything is found again in the tree."""
        outcome = self.attempt(lambda: Resctrl.open(self.fs, ROOT, lock_timeout_s=0.0))
        if outcome.error is None:
            limits, change = self.groups.limits, True
            self.resctrl = outcome.result
            self.groups = Groups(
                self.resctrl,
                "perphd",
                limits=limits,
                change_default=change,
                sleep=self.pass_time,
                clock=lambda: self.tree.now_s,
            )
        else:
            assert not outcome.undisturbed

    # --- the machine, and the stranger ---------------------------------------------------------------------

    @rule(
        operation=st.sampled_from(Operation),
        path=st.sampled_from(PATHS),
        number=st.sampled_from(ERRNOS),
        times=st.integers(1, 3),
        after=st.integers(0, 3),
    )
    def something_will_fail(
        self, operation: Operation, path: str, number: int, times: int, after: int
    ) -> None:
        text = "Out of RMIDs" if operation is Operation.MKDIR else None
        fault = Fault(operation, path, number, text, times)
        self.later(operation, path, after, lambda: self.tree.faults.add(fault))

    def later(self, operation: Operation, path: str, after: int, act: Callable[[], None]) -> None:
        """Let something happen before a matching operation, when ``after`` of them have gone by."""
        left = [after]

        def count() -> None:
            if not left[0]:
                act()
            left[0] -= 1

        self.tree.faults.add(Interference(operation, path, count, times=after + 1))

    @rule(
        call=st.sampled_from(("listdir", "identity", "lock")), number=st.sampled_from((*ERRNOS, errno.EINTR))
    )
    def a_call_will_fail(self, call: str, number: int) -> None:
        self.fs.failing[call] = number

    @rule()
    def nothing_fails_any_more(self) -> None:
        self.tree.faults.clear()
        self.fs.failing.clear()

    @rule(data=st.data())
    def the_stranger_acts(self, data: st.DataObject) -> None:
        self.stranger_does(data.draw(self.acts()))

    @rule(
        data=st.data(),
        operation=st.sampled_from(Operation),
        path=st.sampled_from(PATHS),
        after=st.integers(0, 3),
    )
    def the_stranger_will_act_in_between(
        self, data: st.DataObject, operation: Operation, path: str, after: int
    ) -> None:
        act = data.draw(self.acts())
        self.later(operation, path, after, lambda: self.stranger_does(act))

    @rule(key=st.sampled_from(KEYS))
    def the_stranger_watches_our_group(self, key: str) -> None:
        path = f"{ROOT}/{self.groups.control(key).relative}/mon_groups/watch"
        self.stranger_does(lambda: self.raw.mkdir(path))

    @rule(seconds=st.sampled_from((0.2, 2.0)))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule()
    def a_process_starts(self) -> None:
        self.next_pid += 1
        self.threads.start(self.next_pid)

    @rule(pid=st.sampled_from((2, 10, 30)))
    def a_process_forks(self, pid: int) -> None:
        self.fork(pid)

    def fork(self, parent: int) -> int:
        self.next_pid += 1
        child = self.next_pid

        def born() -> None:
            self.threads.start(child)
            self.tree.forked(parent, child)

        self.stranger_does(born)
        return child

    def end(self, pid: int, zombie: bool) -> None:
        if pid not in self.threads._processes:
            return
        tids = list(self.threads._processes[pid])
        self.threads.end(pid, zombie=zombie)
        if not zombie:
            for tid in tids:
                self.tree.exited(tid)

    # --- what may be drawn -----------------------------------------------------------------------------------

    def targets(self) -> st.SearchStrategy[GroupRef]:
        controls = [self.groups.control(key) for key in KEYS]
        monitors = [self.groups.monitor(control, "m") for control in (*controls, DEFAULT_GROUP)]
        strangers = [GroupRef("other"), GroupRef("perphd"), GroupRef("other", "perphd.m")]
        existing = [group for group in (*controls, *monitors) if group.relative in self.raw_groups()]
        return st.sampled_from(existing * 8 + controls + monitors + strangers + [DEFAULT_GROUP])

    def schematas(self) -> st.SearchStrategy[Schemata]:
        def values(name: str) -> st.SearchStrategy[int]:
            if is_cache(name):
                ways = self.info.caches[name].ways
                spans = st.tuples(st.integers(0, ways - 1), st.integers(1, ways)).map(
                    lambda at: ((1 << at[1]) - 1) << at[0] & self.info.caches[name].cbm_mask
                )
                return st.one_of(spans, spans, spans, st.sampled_from((0, 0b101, 1 << ways)))
            return st.one_of(st.sampled_from((10, 15, 50, 100)), st.sampled_from((0, 5, 101, 2**33)))

        def cells(name: str) -> st.SearchStrategy[dict[int, int]]:
            ids = st.sampled_from((*self.info.domains(name) * 4, 99))
            return st.dictionaries(ids, values(name), max_size=3)

        names = [*self.info.caches, *self.info.bandwidths]
        return st.fixed_dictionaries({}, optional={name: cells(name) for name in names}).map(Schemata.of)

    def strangers_lines(self) -> list[str]:
        resources = [*self.info.caches, *self.info.bandwidths]
        return [
            f"{name}:{ids[0]}={'1' if is_cache(name) else '20'}\n"
            for name in resources
            if (ids := self.info.domains(name))
        ] or ["L3:0=1\n"]

    def acts(self) -> st.SearchStrategy[Callable[[], None]]:
        """What the stranger and the machine do: to the stranger's things, and to ours."""
        ours = self.groups.control("a").relative
        everything = self.machine.cpus
        half = CpuSet(everything.mask & everything.mask >> everything.mask.bit_length() // 2)
        writes = [
            (path, text)
            for group in ("other", "perphd", ours)
            for path, texts in (
                (f"{group}/schemata", self.strangers_lines()),
                (f"{group}/tasks", ["2\n", "20\n"]),
                (f"{group}/cpus_list", ["1\n", "\n"]),
                (f"{group}/mode", ["exclusive\n", "shareable\n"]),
            )
            for text in texts
        ]
        inside = [f"{self.groups.control(key).relative}/mon_groups/watch" for key in KEYS]
        folders = [*STRANGERS, *inside, "other/mon_groups/watch", "mon_groups/watch"]
        return st.one_of(
            st.sampled_from(writes).map(lambda at: lambda: self.raw_write(*at)),
            st.sampled_from(folders).map(lambda path: lambda: self.raw.mkdir(f"{ROOT}/{path}")),
            st.sampled_from((*folders, ours)).map(lambda path: lambda: self.raw.rmdir(f"{ROOT}/{path}")),
            st.sampled_from((half, everything)).map(lambda cpus: lambda: self.tree.set_online(cpus)),
            st.tuples(st.sampled_from((2, 10, 20, 30)), st.booleans()).map(lambda at: lambda: self.end(*at)),
        )

    # --- held at every step, and at the end --------------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "rightful"))
    def what_the_stranger_has_is_untouched(self) -> None:
        assert self.strangers_state() == self.rightful

    def teardown(self) -> None:
        if not hasattr(self, "rightful"):
            return
        self.nothing_fails_any_more()
        self.stranger_does(lambda: self.tree.set_online(self.machine.cpus))
        for path in sorted(self.strangers_groups()):
            if "mon_groups" in path:
                self.stranger_does(partial(self.raw.rmdir, f"{ROOT}/{path}"))
            else:
                self.stranger_does(partial(self.raw_write, f"{path}/mode", "shareable\n"))
        self.groups.sweep()
        self.groups.set_mode(DEFAULT_GROUP, "shareable")
        self.groups.ensure(DEFAULT_GROUP, self.original)
        assert self.strangers_state() == self.rightful
        assert self.raw_groups() - self.strangers_groups() == {""}
        assert self.raw_schemata("") == self.original
        strangers = {GroupRef(path) for path in self.strangers_groups()}
        placed = {tid for group in strangers for tid in self.raw_tasks(group)}
        if self.info.can_control:  # else the default group lists nobody
            assert self.raw_tasks(DEFAULT_GROUP) == set(self.threads.threads()) - placed
        taken = {
            cpu for group in strangers for cpu in parse_cpus(self.raw_text(f"{group.relative}/cpus_list"))
        }
        assert parse_cpus(self.raw_text("cpus_list")) == set(self.machine.cpus) - taken


# Without the phase that explains failures: it takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink)
TestLifeOfGroups = LifeOfGroups.TestCase
TestLifeOfGroups.settings = settings(max_examples=50, stateful_step_count=25, phases=PHASES)
