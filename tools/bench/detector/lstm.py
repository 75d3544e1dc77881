"""An LSTM that predicts the next residual, in place of the AR(1) whitening: same scale, same CUSUM, same noise.

One layer, one step ahead, trained on clean seconds by back-propagation through time (Hochreiter and Schmidhuber 1997;
Adam). The Perph paper names an LSTM as its detector without saying more; this is the small form of it that could be
trained beside a daemon and run in it with numpy alone.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.admission import cusum
from perphd.admission.settings import PolicySettings
from tools.bench.detector import significance
from tools.bench.detector.significance import Noise

Floats = npt.NDArray[np.float64]
HIDDEN: Final = 8
_CLIP: Final = cusum.CLIP_SIGMA


@dataclass(slots=True)
class Lstm:
    """Weights: ``gates`` [4H, 1 + H + 1] (input, hidden, bias; in the order i, f, o, g) and ``out`` [H + 1]."""

    gates: Floats
    out: Floats

    @classmethod
    def random(cls, seed: int) -> Lstm:
        """Small weights; the forget gate begins open."""
        rng = np.random.default_rng(seed)
        gates = rng.normal(0.0, 0.3, (4 * HIDDEN, HIDDEN + 2))
        gates[HIDDEN : 2 * HIDDEN, -1] += 1.0
        return cls(gates, rng.normal(0.0, 0.1, HIDDEN + 1))

    def step(self, x: Floats, h: Floats, c: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """One step for a batch: x [B], h and c [B,H] -> prediction [B], new h, new c, activations [B,4H]."""
        z = np.concatenate([x[:, None], h, np.ones((len(x), 1))], axis=1) @ self.gates.T
        a = np.empty_like(z)
        a[:, : 3 * HIDDEN] = 1.0 / (1.0 + np.exp(-z[:, : 3 * HIDDEN]))
        a[:, 3 * HIDDEN :] = np.tanh(z[:, 3 * HIDDEN :])
        i, f, o, g = (a[:, n * HIDDEN : (n + 1) * HIDDEN] for n in range(4))
        c = f * c + i * g
        h = o * np.tanh(c)
        return h @ self.out[:-1] + self.out[-1], h, c, a


def gradients(net: Lstm, x: Floats) -> tuple[float, Floats, Floats]:
    """Mean squared error of predicting x[:, 1:] from what went before, and its gradients. x: [B,T], standardised."""
    size, length = x.shape
    h = c = np.zeros((size, HIDDEN))
    past: list[tuple[Floats, Floats, Floats, Floats, Floats]] = []
    loss, d_gates, d_out = 0.0, np.zeros_like(net.gates), np.zeros_like(net.out)
    errors = []
    for t in range(length - 1):
        before_h, before_c = h, c
        y, h, c, a = net.step(x[:, t], h, c)
        past.append((before_h, before_c, h, c, a))
        errors.append(y - x[:, t + 1])
    scale = 2.0 / (size * (length - 1))
    d_h_next = d_c_next = np.zeros((size, HIDDEN))
    for t in reversed(range(length - 1)):
        before_h, before_c, h, c, a = past[t]
        i, f, o, g = (a[:, n * HIDDEN : (n + 1) * HIDDEN] for n in range(4))
        e = errors[t]
        loss += float(e @ e)
        d_out[:-1] += scale * (e @ h)
        d_out[-1] += scale * e.sum()
        d_h = scale * e[:, None] * net.out[:-1] + d_h_next
        tanh_c = np.tanh(c)
        d_c = d_h * o * (1.0 - tanh_c**2) + d_c_next
        d_z = np.concatenate(
            [
                d_c * g * i * (1.0 - i),
                d_c * before_c * f * (1.0 - f),
                d_h * tanh_c * o * (1.0 - o),
                d_c * i * (1.0 - g**2),
            ],
            axis=1,
        )
        d_gates += d_z.T @ np.concatenate([x[:, t, None], before_h, np.ones((size, 1))], axis=1)
        d_h_next = d_z @ net.gates[:, 1:-1]
        d_c_next = d_c * f
    return loss * scale / 2.0, d_gates, d_out


def train(series: Floats, seed: int, rounds: int = 250, length: int = 24, size: int = 48) -> Lstm:
    """Fit to a clean, standardised series with Adam on random windows."""
    net, rng = Lstm.random(seed), np.random.default_rng(seed + 1)
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in (net.gates, net.out)]
    for turn in range(1, rounds + 1):
        starts = rng.integers(0, len(series) - length, size)
        _, *grads = gradients(net, np.stack([series[s : s + length] for s in starts]))
        rate = 0.02 * (1.0 - turn / rounds) + 0.001
        for n, weights in enumerate((net.gates, net.out)):
            grad = np.clip(grads[n], -1.0, 1.0)
            m, v = moments[n]
            m, v = m + 0.1 * (grad - m), v + 0.01 * (grad * grad - v)
            moments[n] = m, v
            weights[...] -= rate * (m / (1.0 - 0.9**turn)) / (np.sqrt(v / (1.0 - 0.99**turn)) + 1e-8)
    return net


@dataclass(slots=True)
class Detector:
    """The LSTM's residual behind the same CUSUM as ``perphd.admission.cusum``'s."""

    net: Lstm
    mean: float
    sd: float
    scale: float
    k: float
    h: float
    evidence: float = 0.0
    _h: Floats = field(default_factory=lambda: np.zeros((1, HIDDEN)))
    _c: Floats = field(default_factory=lambda: np.zeros((1, HIDDEN)))
    _told: float = 0.0

    def step(self, residual: float) -> bool:
        """Take in one sample; True at an alarm."""
        x = (residual - self.mean) / self.sd
        z = min(max((x - self._told) / self.scale, -_CLIP), _CLIP)
        self.evidence = max(0.0, self.evidence + z - self.k)
        # What comes in is bounded as well, or one outlier would throw the net off for many steps.
        y, self._h, self._c, _ = self.net.step(np.array([min(max(x, -5.0), 5.0)]), self._h, self._c)
        self._told = float(y[0])
        return self.evidence >= self.h


def detector(noise: Noise, seed: int, h: float, k: float, samples: int = 3600) -> Detector:
    """Trained on an hour of clean noise."""
    clean = np.array(list(noise.draw(Random(f"train:{seed}"), samples)))
    center, sd = float(clean.mean()), float(clean.std())
    series = np.clip((clean - center) / sd, -5.0, 5.0)
    net = train(series, seed)
    hidden = cell = np.zeros((1, HIDDEN))
    errors = []
    for now, later in itertools.pairwise(series):
        y, hidden, cell, _ = net.step(np.array([now]), hidden, cell)
        errors.append(abs(float(later) - float(y[0])))
    return Detector(net, center, sd, 1.2533 * mean(errors), k, h)


def compare(seeds: int) -> list[str]:
    """Table: false alarms a day and delays of both, the same threshold, the same noise."""
    settings, noise = PolicySettings(), Noise()
    k = settings.cusum_k
    h = cusum.threshold(settings.false_alarms_per_day, 1.0, k)
    hours = 6
    alarms: dict[str, list[float]] = {"AR(1)": [], "LSTM": []}
    delays: dict[tuple[str, float], list[float]] = {}
    for seed in range(seeds):
        found = detector(noise, seed, h, k)
        count = 0
        for residual in noise.draw(Random(f"{seed}-clean"), 3600 * hours):
            if found.step(residual):
                count, found.evidence = count + 1, 0.0
        alarms["LSTM"].append(count * 24.0 / hours)
        state, count = cusum.Baseline(), 0
        for residual in noise.draw(Random(f"{seed}-clean"), 3600 * hours):
            state = cusum.step(state, residual, k, h)
            if state.evidence >= h:
                count, state = count + 1, cusum.cleared(state)
        alarms["AR(1)"].append(count * 24.0 / hours)
        for shift in (2.0, 3.0):
            delays.setdefault(("AR(1)", shift), []).extend(
                significance.delays(shift, 8, noise, 500 + seed, settings)
            )
            for run in range(8):
                found.evidence, delay = 0.0, math.inf
                for at, residual in enumerate(noise.draw(Random(f"{500 + seed}+{run}"), 900)):
                    found_now = found.step(residual + (shift * noise.sd if at >= 300 else 0.0))
                    if found_now and at >= 300:
                        delay = float(at - 299)
                        break
                    if found_now:
                        found.evidence = 0.0
                delays.setdefault(("LSTM", shift), []).append(delay)
    lines = [
        "| residual of | false alarms a day | 2 sd: median | missed | 3 sd: median | missed |",
        "| --- " * 6 + "|",
    ]
    for name, rates in alarms.items():
        cells = []
        for shift in (2.0, 3.0):
            every = delays[name, shift]
            cells.append(f"{median(every):g} | {sum(math.isinf(d) for d in every) / len(every):.0%}")
        lines.append(f"| {name} | {mean(rates):.1f} | {' | '.join(cells)} |")
    return lines
