"""An LSTM that predicts the next sample, in place of the AR(1) whitening.

One layer, one step ahead, trained on clean seconds by back-propagation through time (Hochreiter and Schmidhuber 1997;
Adam). The Perph paper names an LSTM as its detector without details. This is a small form that could be trained beside
a daemon and run inside it with numpy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from perphd.admission.detector import cusum

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
    """Mean squared error of predicting x[:, 1:] from earlier values, and its gradients. x: [B,T], standardised."""
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
