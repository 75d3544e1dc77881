"""Prophet on the simulated server: the published fit of two candidates, contention, back-off and reservations."""

from __future__ import annotations

import math

import pytest

from perphd.sim.cluster.staged import (
    CPUS,
    DISK,
    MEMORY_GIB,
    AppStage,
    StagedApp,
    StagedPolicy,
    StagedServer,
    StagedSettings,
    ninety_applications,
)

PROPHET = StagedSettings(StagedPolicy.PROPHET)


def _app(name: str, *stages: tuple[float, float], cpus: float = 1.0, at_s: float = 0.0) -> StagedApp:
    own = tuple(AppStage(length_s, {DISK: demand}) for length_s, demand in stages)
    return StagedApp(name, at_s, cpus, 1.0, own, own)


def test_the_published_fit_of_two_candidates() -> None:
    """635 and 6735 MB, over a capacity of 300 MB/s and a length of 100 s."""
    server = StagedServer([], PROPHET, {DISK: 300.0})
    for running in (_app("E1", (40, 100), (60, 50)), _app("E2", (60, 120), (20, 20))):
        server.submit(running)
    server.start_all(0.0)
    assert len(server.running) == 2
    for candidate in (_app("b", (50, 240), (50, 20)), _app("a", (50, 80), (50, 240))):
        server.submit(candidate)
    fits = {each.name: each.distance * 300.0 * 100.0 for each in server.candidates()}
    assert fits == pytest.approx({"a": 635.0, "b": 6735.0})
    assert server._next(0.0) is not None
    server.start_all(0.0)
    assert [run.app.name for run in server.running] == ["E1", "E2", "a", "b"]


def test_contenders_slow_down_by_the_law_and_backoff_relieves_them() -> None:
    apps = [_app(f"a{n}", (600, 300)) for n in range(4)]  # 1200 of 330 MB/s
    over = 1200.0 / 330.0
    alone = StagedServer(apps, PROPHET).run()
    slower = over * (1.0 + 0.7 * (over - 1.0))
    assert alone.makespan_s == pytest.approx(600.0 * slower, rel=0.01)
    assert alone.restricted == 0
    relieved = StagedServer(apps, StagedSettings(StagedPolicy.PROPHET, backoff=True)).run()
    assert relieved.restricted > 0
    assert relieved.makespan_s < 0.9 * alone.makespan_s
    assert relieved.makespan_s >= 4 * 600.0 * 300.0 / 330.0  # no more than the device has


@pytest.mark.parametrize("policy", list(StagedPolicy))
def test_reservations_hold_and_every_application_ends(policy: StagedPolicy) -> None:
    apps = [app for app in ninety_applications(1) if app.name.startswith(("k0", "k1"))]

    class Watched(StagedServer):
        def start_all(self, now_s: float) -> None:
            super().start_all(now_s)
            assert sum(run.app.cpus for run in self.running) <= CPUS
            assert sum(run.app.memory_gib for run in self.running) <= MEMORY_GIB
            if policy is StagedPolicy.TETRIS and len(self.running) > 1:
                assert sum(run.app.peak(DISK) for run in self.running) <= 330.0 + 1e-6

    outcome = Watched(apps, StagedSettings(policy)).run()
    assert len(outcome.execution_s) == len(apps)
    for app, execution_s in zip(
        sorted(apps, key=lambda each: (each.submitted_s, each.name)), outcome.execution_s, strict=True
    ):
        assert execution_s >= sum(stage.length_s for stage in app.stages) - 1e-6


def test_an_application_beyond_a_server_is_refused() -> None:
    with pytest.raises(ValueError, match="wide requests 25 CPUs"):
        StagedServer([_app("wide", (1, 1), cpus=CPUS + 1)], PROPHET)


def test_the_generator_has_the_published_facts() -> None:
    apps = ninety_applications(2)
    assert len(apps) == 90
    assert {app.cpus for app in apps} == {1.0, 3.0, 5.0}
    assert all(0 <= app.submitted_s <= 1200 for app in apps)
    assert all(0 <= stage.demands.get(DISK, 0.0) <= 300 for app in apps for stage in app.stages)
    errors = [
        profiled.length_s / stage.length_s - 1.0
        for app in apps
        for stage, profiled in zip(app.stages, app.profile, strict=True)
    ]
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) == pytest.approx(0.05, abs=0.01)
