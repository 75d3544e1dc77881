"""The detector's bench: its LSTM learns, its table of quiet days is the node model's, its injections injure."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from perphd.domain.decision import Cause
from tools.bench.detector import injected, lstm, quiet
from tools.bench.detector.significance import Noise


def test_the_lstm_s_gradients_are_those_of_its_loss() -> None:
    net = lstm.Lstm.random(3)
    x = np.random.default_rng(4).normal(size=(3, 6))
    _, d_gates, d_out = lstm.gradients(net, x)
    rng = np.random.default_rng(5)
    for weights, gradient in ((net.gates, d_gates), (net.out, d_out)):
        for _ in range(6):
            at = tuple(int(rng.integers(0, n)) for n in weights.shape)
            kept, step = weights[at], 1e-5
            weights[at] = kept + step
            above = lstm.gradients(net, x)[0]
            weights[at] = kept - step
            below = lstm.gradients(net, x)[0]
            weights[at] = kept
            assert gradient[at] == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-8)


def test_the_lstm_learns_what_correlation_allows() -> None:
    noise = Noise(rho=0.6, sd=1.0, heavy=False)
    series = np.array(list(noise.draw(Random(1), 1000)))
    net = lstm.train(series, 1, rounds=60)
    fresh = np.array(list(noise.draw(Random(2), 800)))[None, :]
    loss, _, _ = lstm.gradients(net, fresh)
    assert loss < 0.8 * float(fresh.var())  # of 1 - 0.36 = 0.64 that is possible


def test_quiet_days_are_looked_up_where_the_node_model_is() -> None:
    found = quiet.days(1.0, 1, day_s=120.0)
    assert found.actions == 0
    assert 120 <= sum(found.health.values()) <= 136, "once a second, but for the first seconds"


@pytest.mark.parametrize(("name", "cause"), [("own throttling", Cause.THROTTLED), ("remote", Cause.REMOTE)])
def test_what_batch_is_not_to_blame_for_is_told(
    name: str, cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injected, "ENDS_S", injected.STARTS_S + 16.0)
    found = injected.run(injected.INJECTIONS[name](Random(f"{name}:1")), 1)
    assert found.suffered < 1.0
    assert found.later is cause
    assert found.false_before == 0
    assert math.isfinite(found.suffered)
