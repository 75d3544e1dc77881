"""Copper on the simulated fleet: within the nodes' offers, cut by an event, conflicts between its schedulers."""

from __future__ import annotations

import numpy as np
import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.qos.event_mode import CopperEvent
from perphd.qos.overcommit import WINDOW_S
from perphd.sim.cluster.bands import TOO_LITTLE, CopperOffers, CopperSettings
from perphd.sim.cluster.fleet_events import FleetEventKind, replayed
from perphd.sim.cluster.fleet_results import FleetRun
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FLEET_NODE, FleetShape, drawn
from perphd.sim.cluster.simulator import FleetSimulator

SHAPE = FleetShape(
    nodes=3, hours=0.5, service_requests=0.5, jobs_per_h=600, median_run_s=600, services=5, batches=4
)
END_S = 1800.0


def _run(event: CopperEvent | None = None, schedulers: int = 2) -> tuple[FleetSimulator, FleetRun]:
    settings = FleetSettings(
        PlacementSettings("balanced"), copper=CopperSettings(event), schedulers=schedulers, cycle_s=60.0
    )
    simulator = FleetSimulator(drawn(SHAPE, 2), SHAPE.nodes, settings)
    return simulator, simulator.run(END_S)


def test_an_offer_is_what_services_leave_less_a_margin():
    offers = CopperOffers(1, FLEET_NODE, CopperSettings())
    here, held = np.array([0]), np.array([100.0 * (1 << 30)])
    offers.used(here, np.array([20.0]), held, 60.0)
    assert offers.left(60.0).max() == 0.0  # no window is over
    offers.used(here, np.array([28.0]), held, WINDOW_S)
    offers.used(here, np.array([10.0]), held, WINDOW_S + 60.0)
    cpus, memory = offers.left(WINDOW_S)[:, 0]
    assert cpus == pytest.approx(128 - 28 - 0.05 * 128)
    assert memory == pytest.approx(0.8 * FLEET_NODE.memory_bytes - held[0] - 0.05 * FLEET_NODE.memory_bytes)


def test_copper_holds_no_more_than_was_offered_and_the_log_replays():
    simulator, found = _run()
    first = min(
        event.at_s
        for event in found.events
        if event.kind is FleetEventKind.STARTED and not simulator._service[event.pod]
    )
    assert first >= WINDOW_S
    assert found.conflicts > 0
    running = replayed(found.events)
    batch = [pod for pod in running if not simulator._service[pod]]
    assert batch
    cores = np.bincount(
        [running[pod] for pod in batch], [simulator._request[pod] for pod in batch], SHAPE.nodes
    )
    assert simulator._copper is not None
    assert simulator._copper.held[0] == pytest.approx(cores)
    assert (cores <= FLEET_NODE.cpus).all()


def test_an_event_stops_new_copper_and_slows_what_runs():
    event = CopperEvent(900.0, 600.0, 0.0, 300.0)
    (_, usual), (simulator, cut) = _run(), _run(event)
    started = [
        each.at_s
        for each in cut.events
        if each.kind is FleetEventKind.STARTED and not simulator._service[each.pod]
    ]
    assert not [at_s for at_s in started if event.begins_s <= at_s < event.ends_s]
    assert [at_s for at_s in started if at_s < event.begins_s]
    assert cut.work_done.sum() < 0.8 * usual.work_done.sum()
    during = [tick.cpu_ratio for tick in cut.ticks if event.begins_s < tick.at_s < event.ends_s]
    assert max(during) < min(tick.cpu_ratio for tick in usual.ticks if tick.at_s > event.begins_s)


def test_a_pod_that_no_offer_fits_is_refused_with_the_reason():
    simulator, _ = _run()
    assert simulator._copper is not None
    simulator._copper.held[:] = 1e15
    batch = int(np.nonzero(~simulator._service)[0][0])
    decision = simulator.decide(batch, END_S)
    assert decision.chosen is None
    assert decision.scores.explained(0).refusals == (TOO_LITTLE,)
