"""The shell of the resource shaper: who is looked at in which round, where there are many workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perphd.agent.memory_forecasts import MemoryForecasts
from perphd.agent.shaping import LEAST_TURNS, LOOKED_AT_ONCE, Shaping
from perphd.config.tables import SizingConfig
from perphd.domain.allocation import UNTOUCHED, Settings
from perphd.domain.forecast import MemoryForecast
from perphd.domain.policy import HostView, Snapshot, TargetState, WorkloadView
from perphd.domain.reading import Reading
from perphd.domain.sample import Sample
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.isolation.ending import Ender
from perphd.monitor.memory_facts import MemoryFacts
from tests.unit.test_agent_fitting import TOPOLOGY

MIB = 1 << 20
MANY = 3 * LOOKED_AT_ONCE
KNOBS = frozenset({"memory_low_bytes", "memory_high_bytes"})
GROUPS = "sys/fs/cgroup"


class Host:
    """Workloads that use 100 MiB of their 1000, on cgroup v2."""

    def __init__(self, root: Path, mode: Any = "pessimistic", k1_pct: float = 5.0) -> None:
        self.root, self.now_s = root, 0.0
        self.specs = [
            WorkloadSpec(
                f"w{n:02}", Kind.BATCH, f"/w{n:02}", reserved_memory_bytes=1000 * MIB, shape="elastic"
            )
            for n in range(MANY)
        ]
        self.used = {spec.name: 100.0 * MIB for spec in self.specs}
        self.write("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self.write(f"{GROUPS}/cgroup.controllers", "memory\n")
        for spec in self.specs:
            self.write(f"{GROUPS}{spec.cgroup}/memory.stat", "anon 7\n")
            self.write(f"{GROUPS}{spec.cgroup}/memory.events", "oom_kill 0\n")
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 0\n")
        fs = RealFs(root)
        hierarchies = discover(fs)
        self.facts = MemoryFacts(fs, hierarchies)
        config = SizingConfig(shaper=mode, memory_bytes=MANY * 1000 * MIB, k1_pct=k1_pct, interval_s=60.0)
        self.shaping = Shaping(config, self.facts, Ender(fs, hierarchies, lambda name: None))
        self.looked: list[set[str]] = []
        look = self.facts.look

        def noted(used: Mapping[str, Reading], now_s: float) -> list[str]:
            self.looked.append(set(used))
            return look(used, now_s)

        self.facts.look = noted  # type: ignore[method-assign]

    def write(self, path: str, text: str) -> None:
        """One file of the machine."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def look(self, rounds: int = 1) -> tuple[tuple[str, str], ...]:
        """So many rounds, a second each; what the last announced."""
        notes: tuple[tuple[str, str], ...] = ()
        for _ in range(rounds):
            self.now_s += 1.0
            views = tuple(
                WorkloadView(
                    spec,
                    Sample(
                        spec.name,
                        self.now_s,
                        1.0,
                        memory_working_set_bytes=self.used[spec.name],
                        memory_full_pct=0.0,
                        refaults_per_s=0.0,
                    ),
                    enforceable=KNOBS,
                    enforced=True,
                )
                for spec in self.specs
            )
            snapshot = Snapshot(int(self.now_s), self.now_s, 1.0, HostView(TOPOLOGY), views)
            notes = self.shaping.look(snapshot, TargetState({})).notes
        return notes

    def is_shaped(self, name: str) -> bool:
        """Whether it is to have other limits than it was found with."""
        return self.shaping.over(name, UNTOUCHED, KNOBS) != UNTOUCHED


def test_every_workload_has_its_turn(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look()
    assert len(host.looked[0]) == MANY, "new ones at once"
    host.look(4)
    host.looked.clear()
    host.look(3)
    assert [len(each) for each in host.looked] == [LOOKED_AT_ONCE] * 3
    assert len(set.union(*host.looked)) == MANY
    turn = {spec.cgroup for spec in host.specs} - host.looked[-1] - host.looked[-2]
    place = next(n for n, spec in enumerate(host.specs) if spec.cgroup not in turn)
    host.specs[place] = replace(host.specs[place], reserved_memory_bytes=900 * MIB)
    host.look()
    assert host.specs[place].cgroup in host.looked[-1], "its declaration has changed"
    assert len(host.looked[-1]) == LOOKED_AT_ONCE, "and those of the others have not"


def test_a_workload_that_leaves_is_forgotten_and_one_that_comes_has_a_target_at_once(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(14 * 60)
    first = host.specs.pop(0)
    host.look()
    assert first.name not in {row.workload for row in host.shaping.view().workloads}
    assert not host.is_shaped(first.name)
    host.specs.append(first)
    host.look()
    assert _target(host, first.name) == 1000 * MIB


def test_who_outgrows_its_target_is_looked_at_in_the_same_round(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(14 * 60)
    assert all(host.is_shaped(spec.name) for spec in host.specs)
    for name in ("w00", "w01", "w02"):
        host.used[name] = 700.0 * MIB
        host.look()
        low = host.shaping.over(name, UNTOUCHED, KNOBS).memory_low_bytes
        assert low == 700 * MIB


def test_a_peak_between_two_turns_counts(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(14 * 60)
    spec = host.specs[0]
    assert _target(host, spec.name) < 160 * MIB
    while spec.cgroup not in host.looked[-1]:
        host.look()
    host.used[spec.name] = 0.99 * _target(host, spec.name)
    host.look()
    assert spec.cgroup not in host.looked[-1], "it fits, and it is not its turn"
    peak, host.used[spec.name] = host.used[spec.name], 100.0 * MIB
    host.look(90)
    assert _target(host, spec.name) >= peak + 50 * MIB, "5 % of the reservation above it, at least"


def test_new_forecasts_end_an_interval_in_the_round_after(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.shaping._ahead = told = _Told()
    host.look(14 * 60)
    told.answer = True
    host.look()
    closed_s = host.shaping._state.closed_s
    told.answer = False
    host.look()
    assert closed_s is not None
    assert closed_s < host.now_s - 60
    assert host.shaping._state.closed_s == host.now_s
    host.look()
    assert host.shaping._state.closed_s == host.now_s - 1


class _Told(MemoryForecasts):
    """A worker that has published nothing yet."""

    def __init__(self) -> None:
        self.answer = False

    def look(self, now_s: float) -> bool | None:
        return self.answer

    def of(self, name: str) -> MemoryForecast | None:
        return None


def _target(host: Host, name: str) -> float:
    found = next(row.target_bytes for row in host.shaping.view().workloads if row.workload == name)
    assert isinstance(found, float)
    return found


def test_who_cannot_wait_takes_no_ones_turn_for_ever(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look()
    for spec in host.specs[: 2 * LOOKED_AT_ONCE]:
        host.used[spec.name] = 2000.0 * MIB  # beyond its reservation, round after round
    host.look(20)
    host.looked.clear()
    host.look(10)
    assert len(set.union(*host.looked)) == MANY
    assert max(len(each) for each in host.looked) <= 2 * LOOKED_AT_ONCE + LEAST_TURNS


def test_what_is_merged_follows_each_of_its_parts(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(14 * 60)
    first = host.shaping.over("w00", UNTOUCHED, KNOBS)
    assert host.shaping.over("w00", Settings(), KNOBS) is first
    lower = replace(UNTOUCHED, memory_high_bytes=7)
    assert host.shaping.over("w00", lower, KNOBS).memory_high_bytes == 7
    assert host.shaping.over("w00", lower, frozenset()) == lower
    host.used["w00"] = 700.0 * MIB
    host.look()
    assert host.shaping.over("w00", UNTOUCHED, KNOBS).memory_low_bytes == 700 * MIB


def test_a_crash_restores_in_the_same_round_whosever_turn_it_is(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.look(14 * 60)
    for number in range(3):
        name = f"w{number:02}"
        host.write(f"{GROUPS}/{name}/memory.events", "oom_kill 1\n")
        host.write("proc/vmstat", f"nr_free_pages 1\noom_kill {number + 1}\n")
        notes: list[tuple[str, str]] = []
        for _ in range(MANY // 25 + 1):  # so many groups' counts are read in a round
            notes += host.look()
        assert [each for each, _ in notes] == [name]
        assert not host.is_shaped(name)
    assert host.is_shaped("w03")


@pytest.mark.parametrize(
    ("mode", "k1_pct"), [("observe", 5.0), ("optimistic", 100.0), ("pessimistic", 100.0)]
)
def test_what_only_proposes_or_keeps_everything_changes_nothing(
    tmp_path: Path, mode: str, k1_pct: float
) -> None:
    host = Host(tmp_path, mode, k1_pct)
    for seconds in (800, 200, 200):
        host.look(seconds)
        assert not any(host.is_shaped(spec.name) for spec in host.specs)
        host.used = {name: 3.0 * used for name, used in host.used.items()}
