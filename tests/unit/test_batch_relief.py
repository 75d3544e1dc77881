"""What copper gives back, in which order, and at what cost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from perphd.batch.relief import LEAST_CPU_SHARE, CopperJob, ReliefRung, relieved
from perphd.qos.ledger import Amounts

ASKED = Amounts(4.0, 100)
JOB = CopperJob("a", ASKED, used=Amounts(4.0, 80), predicted=Amounts(4.0, 90), ran_s=500.0)


def _steps(
    excess: Amounts, *jobs: CopperJob, now_s: float = 0.0, urgent: bool = False
) -> list[tuple[str, str]]:
    return [(step.name, step.rung.value) for step in relieved(excess, jobs, now_s, urgent).steps]


def test_cpus_come_from_ceilings_as_long_as_everybody_keeps_a_tenth() -> None:
    plan = relieved(Amounts(3.6), [JOB, replace(JOB, name="b")], 0.0)
    assert [(step.name, step.frees.cpus, step.lost_s) for step in plan.steps] == [
        ("a", 1.8, 0.0),
        ("b", 1.8, 0.0),
    ]
    assert plan.unrelieved == Amounts()
    rest = 4.0 - LEAST_CPU_SHARE * ASKED.cpus
    more = relieved(Amounts(2 * rest + 0.3), [JOB, replace(JOB, name="b")], 0.0)
    assert [step.rung for step in more.steps] == [
        ReliefRung.CPU_CEILING,
        ReliefRung.CPU_CEILING,
        ReliefRung.FREEZE,
    ]
    assert more.unrelieved == Amounts()


def test_memory_is_reclaimed_then_frozen_then_requeued() -> None:
    cold = replace(JOB, cold_bytes=30)
    assert _steps(Amounts(0.0, 20), cold) == [("a", "reclaim")]
    assert _steps(Amounts(0.0, 50), cold) == [("a", "reclaim"), ("a", "freeze")]
    frozen = replace(
        cold, frozen=True, not_preempted_before_s=999.0
    )  # its back-off does not protect it again
    plan = relieved(Amounts(0.0, 50), [frozen], 0.0)
    assert [(step.rung, step.frees.memory_bytes, step.lost_s) for step in plan.steps] == [
        (ReliefRung.RECLAIM, 30, 0.0),
        (ReliefRung.REQUEUE, 50, 500.0),
    ]
    assert _steps(Amounts(0.0, 50), JOB, urgent=True) == [("a", "requeue")]


def test_who_takes_too_much_goes_first_then_who_has_least_to_lose() -> None:
    jobs = [
        JOB,
        replace(JOB, name="young", ran_s=5.0),
        replace(JOB, name="surprising", used=Amounts(4.0, 95)),
        replace(JOB, name="greedy", used=Amounts(4.0, 120)),
    ]
    plan = relieved(Amounts(0.0, 350), jobs, 0.0, urgent=True)
    assert [step.name for step in plan.steps] == ["greedy", "surprising", "young", "a"]
    assert plan.steps[2].reason == "it has the least work to lose: 5 s"
    assert plan.steps[0].reason.startswith("it uses 4 CPUs")


def test_nobody_is_preempted_within_its_back_off() -> None:
    lately = replace(JOB, not_preempted_before_s=100.0)
    plan = relieved(Amounts(0.0, 50), [lately], 99.0, urgent=True)
    assert (plan.steps, plan.unrelieved) == ((), Amounts(0.0, 50))
    assert relieved(Amounts(0.0, 50), [lately], 100.0, urgent=True).unrelieved == Amounts()
    assert relieved(Amounts(), [JOB], 0.0).steps == ()


JOBS = st.lists(
    st.builds(
        CopperJob,
        st.just(""),
        st.builds(Amounts, st.floats(0.5, 8), st.integers(1, 100)),
        st.builds(Amounts, st.floats(0, 8), st.integers(0, 150)),
        st.builds(Amounts, st.floats(0, 8), st.integers(0, 150)),
        st.integers(0, 150),
        st.booleans(),
        st.floats(0, 1000),
        st.floats(0, 10),
    ),
    max_size=5,
).map(lambda jobs: [replace(job, name=str(n)) for n, job in enumerate(jobs)])


@settings(max_examples=80, deadline=None)
@given(JOBS, st.floats(0, 20), st.integers(0, 300), st.booleans())
def test_no_plan_frees_more_than_a_job_has_or_preempts_for_nothing(
    jobs: list[CopperJob], cpus: float, memory_bytes: int, urgent: bool
) -> None:
    excess = Amounts(cpus, memory_bytes)
    plan = relieved(excess, jobs, 5.0, urgent)
    for job in jobs:
        steps = [step for step in plan.steps if step.name == job.name]
        freed = sum((step.frees for step in steps), Amounts())
        assert freed.fits(job.used)
        preempting = [step for step in steps if step.rung in (ReliefRung.FREEZE, ReliefRung.REQUEUE)]
        assert len(preempting) <= 1
        if preempting:
            assert job.frozen or job.not_preempted_before_s <= 5.0
            assert (
                (cpus > 0 and job.used.cpus > 0)
                or (memory_bytes > 0 and job.used.memory_bytes > 0)
                or job.frozen
            )
        assert all(step.reason for step in steps)
        assert sum(step.lost_s for step in steps) == (
            job.ran_s if any(step.rung is ReliefRung.REQUEUE for step in steps) else 0.0
        )
    if urgent and all(job.frozen or job.not_preempted_before_s <= 5.0 for job in jobs):
        held = sum(job.used.memory_bytes for job in jobs)
        assert plan.unrelieved.memory_bytes <= max(0, memory_bytes - held)
