from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from perphd.agent import rebuilds as rebuilds_module
from perphd.agent.rebuilds import COMMAND, RETRY_S, Rebuilds
from perphd.agent.records import Records
from perphd.domain.allocation import Allocation, CpuGrant
from perphd.domain.policy import ModelContext
from perphd.domain.sample import Sample
from perphd.predictor import LraModel, Observation, Registry
from perphd.predictor.boosted import RESIDENT
from perphd.predictor.ogbrt import Forest
from perphd.predictor.ogbrt.rebuild import RebuildJob


def due(samples: int = 80) -> Registry:
    """A registry with one model that wants to be rebuilt."""
    registry = Registry("ogbrt")
    rng = np.random.default_rng(0)
    for t in range(samples + 20):
        batch = t >= 20
        work = 1000.0 if not batch else 500.0 + 100.0 * rng.random()
        sample = Sample("db", float(t), 1.0, cpu_usage_cores=2.0, run_delay_cores=1.0, work_rate_per_s=work)
        grant = CpuGrant(4, 4 if rng.random() < 0.5 else 2, 100)
        context = ModelContext(2.0, 4.0 if batch else 0.0, 4.0)
        registry.model("db").observe(Observation(sample, Allocation(grant), context, not batch))
    return registry


def finish(rebuilds: Rebuilds, now_s: float = 1.0, steps: int = 3000) -> None:
    for _ in range(steps):
        rebuilds.step(now_s)
        if rebuilds._running is None:
            return
        time.sleep(0.01)
    raise AssertionError("the rebuild never ended")


def made(
    registry: Registry, command: Sequence[str] = COMMAND, deadline_s: float = 60.0
) -> tuple[Rebuilds, Records]:
    records = Records(None, lambda: 0.0)
    return Rebuilds(registry, records, command, deadline_s), records


def test_a_worker_rebuilds_and_nothing_stays_when_it_is_done() -> None:
    registry = due()
    rebuilds, records = made(registry)
    rebuilds.step(1.0)
    assert rebuilds._running is not None
    finish(rebuilds)
    assert rebuilds.done == 2  # of work and of delay, one after the other
    assert records.problems == ()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    work = registry.model("db")._work
    assert work._trees._challenger is not None  # type: ignore[attr-defined]
    rebuilds.close()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("/no/such/program",), "a worker cannot be started: No such file or directory: /no/such/program"),
        ((sys.executable, "-c", "raise SystemExit('no memory')"), "the worker ended with 1: no memory"),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), "the worker ended with -9"),
        ((sys.executable, "-c", "print('hello')"), "the worker's answer cannot be read"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "the worker did not end within 0.3 s"),
    ],
)
def test_whatever_goes_wrong_the_model_stays_and_one_sentence_says_so(
    command: Sequence[str], says: str
) -> None:
    registry = due()
    rebuilds, records = made(registry, command, deadline_s=0.3 if "sleep" in command[-1] else 60.0)
    asked, context = [Allocation(CpuGrant(4, 2, 100))], ModelContext(2.0, 4.0, 4.0)
    before = registry.model("db").predict_work(asked, context)
    finish(rebuilds)
    (problem,) = records.problems
    assert says in problem
    assert "the present one is kept" in problem
    assert registry.model("db").predict_work(asked, context) == before
    # Not again at once, though there is more to learn from.
    assert rebuilds._not_before_s == 1.0 + RETRY_S
    rebuilds.close()


def test_a_host_without_a_free_thread_loses_neither_the_tick_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    rebuilds, records = made(due())
    with monkeypatch.context() as patched:
        patched.setattr("perphd.agent.rebuilds._thread.start_new_thread", full)
        rebuilds.step(1.0)
        rebuilds.step(2.0)
    (problem,) = records.problems
    assert "a worker cannot be started: can't start new thread" in problem
    # Threads are free again: the rebuild is made after the pause.
    finish(rebuilds, 2.0 + RETRY_S)
    assert rebuilds.done > 0
    assert records.problems == ()
    rebuilds.close()


def test_an_end_in_between_waits_for_nobody() -> None:
    rebuilds, _ = made(due(), (sys.executable, "-c", "import time; time.sleep(60)"))
    rebuilds.step(1.0)
    began = time.monotonic()
    rebuilds.close()
    assert time.monotonic() - began < 30.0
    rebuilds.step(2.0)
    assert rebuilds._running is None
    rebuilds.close()


def test_all_models_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose rebuilds are always due again does not keep the others waiting."""
    registry = Registry("ogbrt")
    served: list[str] = []

    class Always(LraModel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def next_rebuild(self) -> tuple[str, RebuildJob]:
            served.append(self.name)
            return "work", empty

        def offer(self, channel: str, rebuilt: object) -> None:
            pass

    empty = RebuildJob(("a",), (0,), np.zeros((0, 1)), np.zeros(0), np.zeros(0), RESIDENT.fit, 1, 0)
    monkeypatch.setattr(Rebuilds, "_run", lambda self, job: job.run())
    for name in ("first", "second", "third"):
        registry.put(name, Always(name))
    rebuilds, _ = made(registry)
    for _ in range(500):
        rebuilds.step(1.0)
        if len(served) >= 6:
            break
        time.sleep(0.01)
    rebuilds.close()
    assert served[:6] == ["first", "second", "third"] * 2


def test_the_loop_only_copies_and_points_however_many_models_want_a_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What may take long is done elsewhere; what the loop does in one step does not grow with the models."""
    registry = due()
    for name in ("second", "third"):
        registry.put(name, due().model("db"))
    loop, heavy, routed = threading.get_ident(), [], []

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            heavy.append((name, threading.get_ident() == loop))
            return function(*args, **more)

        return called

    for name in ("pack_jobs", "unpack_results"):
        monkeypatch.setattr(rebuilds_module, name, watched(name, getattr(rebuilds_module, name)))
    monkeypatch.setattr(Forest, "compile", watched("compile", Forest.compile))
    monkeypatch.setattr(RebuildJob, "run", watched("run", RebuildJob.run))
    leaves = Forest.leaves

    def counted(self: Forest, x: Any) -> Any:
        routed.append(len(x) if threading.get_ident() == loop else 0)
        return leaves(self, x)

    monkeypatch.setattr(Forest, "leaves", counted)
    rebuilds, _ = made(registry)
    steps, handed = 0, 0
    while rebuilds.done < 3:
        routed.clear()
        before = rebuilds._running
        rebuilds.step(1.0)
        handed += rebuilds._running is not None and rebuilds._running is not before
        assert sum(routed) <= RESIDENT.reservoir
        steps += 1
        assert steps < 20_000
        time.sleep(0.005)
    assert handed in (3, 4)
    assert {name for name, _ in heavy} == {
        "pack_jobs",
        "unpack_results",
    }  # nothing is compiled or trained here
    assert not any(on_loop for _, on_loop in heavy)
    rebuilds.close()
