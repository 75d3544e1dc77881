"""Exploring: the order, stopping at once, what is left out because of it, and taking a run up again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from perphd.agent.profiling.explorer import (
    ExplorationGuard,
    ExplorationStep,
    Explorer,
    Pacing,
    Stop,
    looks_ahead,
)
from perphd.agent.profiling.host import lattice_of, settings_of
from perphd.agent.profiling.progress import ProfileProgress
from perphd.agent.profiling.run import LEAST_OF_ONE, LEAST_ROWS, least_rows, rows_of
from perphd.domain.allocation import KEEP
from perphd.domain.errors import PerphError
from perphd.domain.reading import NOT_MEASURED, Unavailable
from perphd.domain.sample import Quality, Sample
from perphd.domain.topology import Topology
from perphd.domain.workload import Objective
from perphd.host.actuators import Actuators
from perphd.host.topology import read_topology
from perphd.predictor.profile.lattice import Axis, Lattice, Point
from perphd.sim.host import SimHost
from perphd.sim.machine import Machine

CORES = Lattice((Axis("cpus", "cores", (1.0, 2.0, 3.0, 4.0)), Axis("llc_ways", "ways", (1.0, 2.0, 3.0))))


class Fake:
    """Work follows the cores; it remembers everything that was wanted of it."""

    def __init__(self, lattice: Lattice = CORES, gone_after: int | None = None) -> None:
        self.lattice, self.point = lattice, lattice.most
        self.wanted: list[Point | None] = []
        self.looks, self.gone_after = 0, gone_after
        self.latency = 1.0

    async def grant(self, point: Point | None) -> None:
        self.wanted.append(point)
        self.point = point if point is not None else self.lattice.most

    def ready(self) -> bool:
        return True

    def in_force(self, point: Point) -> tuple[float, ...]:
        return self.lattice.values(point)

    async def look(self) -> Sample:
        self.looks += 1
        if self.gone_after is not None and self.looks > self.gone_after:
            return Sample("db", 0.0, 1.0, quality=(Quality.GONE,))
        cores = self.lattice.values(self.point)[0]
        return Sample(
            "db", float(self.looks), 1.0, work_rate_per_s=100.0 * cores, cpu_usage_cores=cores,
            latency_p95_ms=self.latency, load_per_s=Unavailable("closed"),
        )  # fmt: skip


def progress(path: Path | None = None, lattice: Lattice = CORES) -> ProfileProgress:
    return ProfileProgress("db", lattice, lattice.sample(lattice.size), 0, path)


async def explore(
    subject: Fake, known: ProfileProgress, guard: ExplorationGuard | None, skip: bool = False
) -> tuple[str, list[ExplorationStep]]:
    steps: list[ExplorationStep] = []
    outcome = await Explorer(subject, known, guard, Pacing(1, 1, skip), steps.append).run()
    return outcome.stop.value, steps


async def test_it_goes_through_everything_and_leaves_everything_granted() -> None:
    subject, known = Fake(), progress()
    stop, steps = await explore(subject, known, None)
    assert stop == Stop.DONE
    assert len(known.measured) == 12 == len(steps) == steps[-1].done
    assert subject.wanted[-1] is None
    names, scale, x, y = rows_of(known, known.reference)  # type: ignore[arg-type]
    assert names == ["cpu_share", "llc_share"]
    assert scale == (4.0, 3.0)
    assert y.max() == pytest.approx(0.0)
    assert y.min() == pytest.approx(-1.386, abs=0.01)
    assert x.max() == 1.0


async def test_it_stops_at_once_when_the_application_suffers() -> None:
    subject, known = Fake(), progress()
    stop, steps = await explore(subject, known, ExplorationGuard(max_loss_pct=40.0))
    assert stop == Stop.SUFFERED
    hurt = next(iter(known.suffered))
    assert CORES.values(hurt)[0] <= 2.0
    at = subject.wanted.index(hurt)
    assert subject.wanted[at + 1 :] == [None, None]  # nothing but giving back after it
    assert "work fell to 50% of the reference" in steps[-1].complaint


async def test_it_can_go_on_and_then_leaves_out_what_grants_no_more() -> None:
    subject, known = Fake(), progress()
    stop, _ = await explore(subject, known, ExplorationGuard(max_loss_pct=40.0), skip=True)
    assert stop == Stop.DONE
    assert known.suffered
    assert known.pruned
    assert all(CORES.values(p)[0] >= 3.0 for p in known.measured)
    tried = [p for p in subject.wanted if p is not None and CORES.values(p)[0] <= 2.0]
    assert len(set(tried)) < 6  # there are six cells with one or two cores


async def test_an_allocation_is_left_out_only_if_it_hurts_twice() -> None:
    class Disturbed(Fake):
        """Other work on the host halves the rate in three samples, whatever is granted."""

        async def look(self) -> Sample:
            sample = await super().look()
            low = 8 <= self.looks < 11 and self.point != self.lattice.most
            return replace(sample, work_rate_per_s=120.0) if low else sample

    subject, known = Disturbed(), progress()
    stop, steps = await explore(subject, known, ExplorationGuard(max_loss_pct=55.0), skip=True)
    assert stop == Stop.DONE
    first = next(step for step in steps if step.complaint)
    assert first.again
    assert first.point in known.measured  # the second try did not hurt
    assert not any(CORES.values(p)[0] >= 2.0 for p in known.suffered)
    hurt = [step for step in steps if step.complaint and CORES.values(step.point)[0] < 2.0]
    assert [step.again for step in hurt[:2]] == [True, False]  # one core is too little, twice


async def test_an_absolute_latency_objective_counts() -> None:
    subject, known = Fake(), progress()
    subject.latency = 20.0
    stop, steps = await explore(subject, known, ExplorationGuard(Objective(max_latency_ms=10.0)))
    assert stop == Stop.SUFFERED
    assert "max_latency_ms = 10" in steps[-1].complaint


async def test_a_delay_that_grows_counts() -> None:
    class Slow(Fake):
        async def look(self) -> Sample:
            sample = await super().look()
            return replace(sample, latency_p95_ms=5.0) if self.lattice.values(self.point)[0] < 3 else sample

    stop, steps = await explore(Slow(), progress(), ExplorationGuard(max_loss_pct=90.0))
    assert stop == Stop.SUFFERED
    assert "delay grew to 5.0 times the reference" in steps[-1].complaint


async def test_a_latency_is_not_compared_with_a_wait_for_processors() -> None:
    class Quiet(Fake):
        """At first, too few requests are completed for a percentile of their latency."""

        async def look(self) -> Sample:
            sample = replace(await super().look(), run_delay_cores=0.1, latency_p95_ms=50.0)
            return replace(sample, latency_p95_ms=NOT_MEASURED) if self.looks <= 3 else sample

    subject, known = Quiet(), progress()
    stop, _ = await explore(subject, known, ExplorationGuard(max_loss_pct=90.0))
    assert stop == Stop.DONE
    assert len(known.measured) == 12


async def test_cpu_time_is_not_compared_with_instructions() -> None:
    class Uncounted(Fake):
        """Another program takes the hardware's counters after the reference was measured."""

        async def look(self) -> Sample:
            mips = 3000.0 if self.looks < 3 else NOT_MEASURED
            return replace(await super().look(), work_rate_per_s=NOT_MEASURED, mips=mips)

    subject, known = Uncounted(), progress()
    stop, _ = await explore(subject, known, ExplorationGuard())
    assert stop == Stop.DONE
    assert not known.suffered
    assert not known.measured


async def test_nothing_more_is_tried_before_the_indicators_say_that_it_recovered() -> None:
    class Restarted(Fake):
        """With one core, it is restarted afterwards, and has no indicators for some samples."""

        silent, blind = 0, 0

        async def grant(self, point: Point | None) -> None:
            if point is None and self.lattice.values(self.point)[0] < 2.0:
                self.silent = 6
            self.blind += point is not None and self.silent > 0
            await super().grant(point)

        async def look(self) -> Sample:
            sample = await super().look()
            if not self.silent:
                return sample
            self.silent -= 1
            return replace(sample, work_rate_per_s=NOT_MEASURED, quality=(Quality.SLI_MISSING,))

    subject, known = Restarted(), progress()
    stop, _ = await explore(subject, known, ExplorationGuard(max_loss_pct=55.0), skip=True)
    assert stop == Stop.DONE
    assert known.suffered
    assert subject.blind == 0


async def test_a_run_that_ended_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "db.progress.json"
    first = progress(path)
    with pytest.raises(PerphError, match="gone"):
        await explore(Fake(gone_after=20), first, None)
    again = ProfileProgress.load(path, "db")
    assert again is not None
    assert 0 < len(again.measured) < 12
    assert again.measured == first.measured
    assert again.reference == first.reference
    subject = Fake()
    await explore(subject, again, None)
    assert len(again.measured) == 12
    before = set(first.measured)
    assert not before & {p for p in subject.wanted if p is not None and p != CORES.most}
    again.forget()
    assert ProfileProgress.load(path, "db") is None


def test_progress_that_cannot_be_taken_up_says_so(tmp_path: Path) -> None:
    path = tmp_path / "db.progress.json"
    known = progress(path)
    known.add_suffered((0, 0), "slow")
    with pytest.raises(PerphError, match=r"of 'db'.*--fresh"):
        ProfileProgress.load(path, "web")
    data = json.loads(path.read_text())
    data["points"][0] = [99, 0]
    path.write_text(json.dumps(data))
    with pytest.raises(PerphError, match="not a cell of the lattice"):
        ProfileProgress.load(path, "db")
    path.write_text("{}")
    with pytest.raises(PerphError, match="--fresh"):
        ProfileProgress.load(path, "db")


async def test_an_application_without_work_cannot_be_explored() -> None:
    class Idle(Fake):
        async def look(self) -> Sample:
            return replace(await super().look(), work_rate_per_s=0.0)

    with pytest.raises(PerphError, match="no work was measured"):
        await explore(Idle(), progress(), None)


# -- the lattice of a host ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topology() -> Topology:
    return read_topology(SimHost([], machine=Machine(1, 4)).fs)


SAMPLE = Sample("db", 0.0, 1.0, memory_current_bytes=2e9, memory_working_set_bytes=1e9)
EVERYTHING = frozenset({"cpus", "memory_high_bytes", "llc_masks", "mba_pct"})


def test_only_what_can_be_set_is_explored_and_the_rest_is_said(topology: Topology) -> None:
    lattice, left_out = lattice_of(SAMPLE, topology, Actuators(), frozenset({"cpus", "memory_high_bytes"}))
    assert [axis.name for axis in lattice.axes] == ["cpus", "memory_bytes"]
    assert left_out == {"llc_ways": "cannot be set here", "mbw_pct": "cannot be set here"}
    full, nothing = lattice_of(SAMPLE, topology, Actuators(11, 2, (10, 50, 100)), EVERYTHING)
    assert not nothing
    steps = {axis.name: axis.steps for axis in full.axes}
    assert steps["llc_ways"][0] == 2.0
    assert steps["llc_ways"][-1] == 11.0
    assert steps["cpus"] == (1.0, 2.0, 3.0, 4.0)
    assert steps["memory_bytes"][0] == pytest.approx(1.1e9)  # never into what it works with


def test_memory_that_is_all_in_use_is_not_touched(topology: Topology) -> None:
    tight = replace(SAMPLE, memory_working_set_bytes=1.95e9)
    _, left_out = lattice_of(tight, topology, Actuators(), EVERYTHING)
    assert "no more memory than it uses" in left_out["memory_bytes"]


def test_settings_say_what_a_cell_grants_and_leave_alone_what_is_granted_in_full(topology: Topology) -> None:
    lattice, _ = lattice_of(SAMPLE, topology, Actuators(11, 1, (10, 50, 100)), EVERYTHING)
    full = settings_of(lattice, lattice.most, topology)
    assert full.is_untouched()
    tight = settings_of(lattice, (0, 2, 1, 0), topology)
    assert str(tight.cpus) == "0"
    assert tight.llc_masks == ((0, 0b111),)
    assert tight.mba_pct == ((0, 50),)
    assert tight.memory_high_bytes == pytest.approx(1.1e9)
    assert settings_of(lattice, (1, *lattice.most[1:]), topology).llc_masks is KEEP


# -- CPU time where whole cores are few -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "first", "second"),
    [(4.0, 2.4, 2.45), (1.0, 0.6, 0.62), (0.3, 0.18, 0.19), (0.05, 0.03, 0.04)],
)
def test_cpu_time_is_dialled_in_tenths_or_finer_where_cores_are_few(
    topology: Topology, used: float, first: float, second: float
) -> None:
    knobs = frozenset({"cpus", "cpu_max_cores"})
    lattice, _ = lattice_of(replace(SAMPLE, cpu_usage_cores=used), topology, Actuators(), knobs)
    (axis,) = lattice.axes
    assert (axis.name, axis.unit) == ("cpu_max", "CPUs")
    assert axis.steps[:2] == (first, second)
    assert axis.steps[-1] == 4.0, "all there is: no limit"
    assert settings_of(lattice, lattice.most, topology).is_untouched()
    tight = settings_of(lattice, (0,), topology)
    assert tight.cpu_max_cores == first
    assert tight.cpus is KEEP


def test_whole_cores_stay_where_there_are_many_or_time_cannot_be_set(topology: Topology) -> None:
    busy = replace(SAMPLE, cpu_usage_cores=1.0)
    without, _ = lattice_of(busy, topology, Actuators(), frozenset({"cpus"}))
    assert [axis.name for axis in without.axes] == ["cpus"]
    many = read_topology(SimHost([], machine=Machine(1, 8)).fs)
    large, _ = lattice_of(busy, many, Actuators(), frozenset({"cpus", "cpu_max_cores"}))
    assert [axis.name for axis in large.axes] == ["cpus"]


async def test_the_looks_that_it_takes_are_known_before_it_begins() -> None:
    two = Lattice(
        (Axis("cpus", "cores", tuple(map(float, range(1, 31)))), Axis("m", "", (1.0, 2.0), slow=True))
    )
    known, subject = progress(lattice=two), Fake(two)
    expected = looks_ahead(known, Pacing(1, 1))
    await explore(subject, known, None)
    assert subject.looks == expected
    assert looks_ahead(known, Pacing(1, 1)) == 3, "nothing but the reference is left"


def test_one_knob_needs_fewer_allocations_than_several() -> None:
    assert least_rows(CORES) == LEAST_ROWS
    assert least_rows(Lattice(CORES.axes[:1])) == LEAST_OF_ONE < LEAST_ROWS


async def test_cpu_time_is_a_share_of_what_the_application_uses() -> None:
    lattice = Lattice((Axis("cpu_max", "CPUs", (0.6, 0.8, 1.0, 2.0)),))
    known = progress(lattice=lattice)
    await explore(Fake(lattice), known, None)
    names, scale, x, y = rows_of(known, known.reference)  # type: ignore[arg-type]
    assert names == ["cpu_share"]
    assert scale == (2.0,)
    assert sorted(x[:, 0]) == pytest.approx([0.3, 0.4, 0.5, 1.0])
    assert y[x[:, 0].argmin()] == pytest.approx(math.log(0.3), abs=0.01)
