"""A model whose advice fails is not asked for a while; the ladder then always works."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from perphd.admission.features import quarantine
from perphd.admission.features.quarantine import Quarantine
from perphd.admission.inference.inferer import untouched
from perphd.admission.perph import PerphMemory
from perphd.admission.review.outcomes import Came, Pending
from perphd.admission.settings import PolicySettings
from perphd.domain.allocation import Allocation, CpuGrant, CpuInstrument
from perphd.domain.decision import Action
from tests.unit.admission_world import World

SETTINGS = PolicySettings(quarantine_s=100.0)
NOTHING = untouched(8)
MORE = Allocation(CpuGrant(8, 4, 100))


def pending(action: Action = Action.GROW, after: Allocation = MORE) -> Pending:
    return Pending(0.0, NOTHING, after, action, 0.7)


def fail(state: Quarantine, now_s: float) -> Quarantine:
    return quarantine.judged(state, pending(), Came.NO_HELP, 0.7, now_s, SETTINGS)


def test_two_failures_in_a_row_quarantine_and_repetition_doubles() -> None:
    state = fail(Quarantine(), 0.0)
    assert not state.active(0.0)
    state = fail(state, 10.0)
    assert state.active(109.0)
    assert not state.active(110.0)
    state = fail(fail(state, 120.0), 130.0)
    assert state.active(130.0 + 199.0)
    assert not state.active(130.0 + 200.0)
    late = fail(fail(state, 2000.0), 2010.0)  # did well for longer than it was not asked
    assert not late.active(2110.0)


def test_what_helped_and_what_was_no_advice_is_not_held_against_it() -> None:
    once = fail(Quarantine(), 0.0)
    assert quarantine.judged(once, pending(), Came.HELPED, 1.1, 5.0, SETTINGS).failures == 0
    for action in (Action.SHRINK, Action.EXPLORE):
        assert quarantine.judged(once, pending(action), Came.NO_HELP, 0.7, 5.0, SETTINGS) == once
    memory = pending(after=replace(NOTHING, memory_bytes=1 << 30))
    assert quarantine.judged(once, memory, Came.NO_HELP, 0.7, 5.0, SETTINGS) == once


@given(
    came=st.lists(st.sampled_from([Came.HELPED, Came.NO_HELP, Came.WORSE, Came.TOO_LITTLE]), max_size=60),
    step_s=st.floats(1.0, 500.0),
)
def test_a_quarantine_always_ends(came: list[Came], step_s: float) -> None:
    state, now_s = Quarantine(), 0.0
    for item in came:
        now_s += step_s
        state = quarantine.judged(state, pending(), item, 0.8, now_s, SETTINGS)
        assert state.until_s is None or state.until_s <= now_s + 64 * SETTINGS.quarantine_s


def quarantined(world: World) -> None:
    """Hold two failures against the model, as if they had just happened."""
    memory = world.memory
    assert isinstance(memory, PerphMemory)
    held = Quarantine(until_s=world.now_s + 1e6, times=1)
    state = replace(memory.lras["db"], quarantine=held)
    world.memory = PerphMemory({"db": state})


def test_the_ladder_rescues_without_the_model_and_gives_back_what_is_not_needed() -> None:
    def loss(a: Allocation) -> float:
        return 1.0 if a.cpu.instrument is CpuInstrument.EXCLUSIVE else 0.5

    world = World(cores=8, lra_demand=3.0, loss=loss)
    world.step(20)
    quarantined(world)
    world.antagonist(True)
    world.step(120)
    assert world.true_work() >= 0.9 * world.work_alone
    assert world.history[-1].chosen.cpu.instrument is CpuInstrument.EXCLUSIVE
    reasons = {d.reason for d in world.history if d.action is Action.GROW}
    assert reasons == {"the model's advice has failed: the next rung of the ladder"}
    world.loss = lambda _: 1.0
    world.step(400)
    assert world.true_work() >= 0.9 * world.work_alone
    first = next(d for d in world.history if d.chosen.cpu.instrument is CpuInstrument.EXCLUSIVE)
    assert world.history[-1].chosen.cpu != first.chosen.cpu  # less than at its worst


def test_at_the_end_of_the_ladder_the_best_rung_stays() -> None:
    world = World(cores=8, lra_demand=3.0, loss=lambda a: 0.5)
    world.step(20)
    quarantined(world)
    world.antagonist(True)
    world.step(300)
    late = [d for d in world.history[-60:] if d.action is not Action.HOLD]
    assert len(late) <= 6  # it calms down
