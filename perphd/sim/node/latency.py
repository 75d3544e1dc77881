"""Performance of an LRA with its available CPUs: response time and rate in closed and open loops, percentiles.

Closed loops use approximate mean-value analysis, open loops Sakasegawa's waiting probability for M/G/k.
Calibrated on MariaDB under sysbench beside CPU-bound batch on two cores (tests/sim holds the measured figures).
Arrays [B,W]; entries of batch jobs are computed but not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from perphd.sim.node.grant import Array
from perphd.sim.node.physics import PRESENT, Physics

_BURST_CREDIT: Final = 0.6
BUSY_MAX: Final = 0.97
"""Share of its CPUs above which an open loop builds a backlog."""
_Z95: Final = NormalDist().inv_cdf(0.95)
_Z99: Final = NormalDist().inv_cdf(0.99)
_NEAR_POLE: Final = 0.998
_TINY: Final = 1e-12


@dataclass(slots=True)
class Loop:
    """Performance of an LRA's requests. Times are in seconds.

    ``rate``: requests per second; ``response_s``: mean response time; ``cpu_wait_s``: part of it spent waiting for a
    CPU; ``queued``: share of the requests that wait; ``burst_s``: mean wait of these.
    """

    rate: Array
    response_s: Array
    cpu_wait_s: Array
    queued: Array
    burst_s: Array


def pace(busy: Array, entitled: Array, servers: Array, power: float = 2.0) -> Array:
    """Speed of one running thread relative to a whole CPU: 1 while its group uses little, and the group's fair share
    per CPU when the group wants everything.
    """
    share: Array = 1.0 - (1.0 - np.minimum(1.0, entitled / servers)) * np.minimum(1.0, busy) ** power
    return share


def closed_step(
    rate: Array,
    clients: Array,
    service_s: Array,
    serial_s: Array,
    other_s: Array,
    entitled: Array,
    servers: Array,
) -> Loop:
    """One Newton step on rate x response time = clients, from ``rate``; its fixed point is the solution.

    Args:
        rate: requests/s now; the step starts there.
        clients: requests in the loop.
        service_s: CPU time of a request.
        serial_s: time in the section that admits one request at a time.
        other_s: everything else that a request waits for.
        entitled: cores that the LRA gets if it asks for all.
        servers: CPUs that the LRA can use at once.
    """
    others = np.maximum(clients - 1.0, 0.0) / np.maximum(clients, _TINY)
    slot = service_s / entitled
    # The maximum of the CPUs and the serial section, minus a margin within which Newton's steps would be
    # tiny.
    pole = np.minimum(1.0 / slot, 1.0 / np.maximum(serial_s, _TINY))
    rate = np.minimum(rate, pole * _NEAR_POLE)
    busy = rate * slot
    crowding = np.sqrt(2.0 * (servers + 1.0)) - 2.0
    lost = 1.0 - np.minimum(1.0, entitled / servers)
    slowed = 1.0 - lost * busy * busy
    paced = service_s / slowed - service_s
    z = others * busy ** (1.0 + crowding)
    wait = (paced + z * slot) / np.maximum(1.0 - z, _TINY)
    lock = serial_s / np.maximum(1.0 - others * rate * serial_s, _TINY)
    response = service_s + wait + lock + other_s
    gap = rate * response - clients
    # Derivatives with respect to rate.
    paced_d = service_s * 2.0 * lost * busy * slot / (slowed * slowed)
    z_d = (1.0 + crowding) * z / np.maximum(rate, _TINY)
    wait_d = (paced_d + z_d * slot + wait * z_d) / np.maximum(1.0 - z, _TINY)
    slope = response + rate * (wait_d + others * lock * lock)
    moved = rate - gap / slope
    moved = np.minimum(np.maximum(moved, 0.02 * rate), rate + 0.9 * (pole - rate))
    zero = np.zeros_like(rate)
    return Loop(moved, clients / np.maximum(moved, _TINY), wait, zero, zero)


def open_loop(
    offered: Array,
    backlog: Array,
    service_s: Array,
    serial_s: Array,
    other_s: Array,
    held_s: Array,
    threads: Array,
    entitled: Array,
    servers: Array,
    bursts: Array,
    physics: Physics = PRESENT,
) -> Loop:
    """Response to requests of an open loop.

    Args:
        offered: requests/s that arrive, plus waiting ones that are served now.
        backlog: requests that were already waiting.
        service_s: CPU time of a request.
        serial_s: time in the section that admits one request at a time.
        other_s: everything else that a request waits for.
        held_s: the part of ``other_s`` during which the request holds a thread.
        threads: requests that can be processed at once.
        entitled: cores that the LRA gets if it asks for all.
        servers: CPUs that the LRA can use at once.
        bursts: (1 + cv^2) / 2 of arrivals and service.
        physics: defines the form of waiting.
    """
    cpu_limit = BUSY_MAX * entitled / service_s
    limit = np.minimum(cpu_limit, threads / np.maximum(service_s + held_s, _TINY))
    limit = np.minimum(limit, BUSY_MAX / np.maximum(serial_s, _TINY))
    rate = np.minimum(offered, limit)
    # A burst gets more than the fair share, because the scheduler owes time to threads that slept.
    burst_cores = entitled + _BURST_CREDIT * (servers - entitled)
    busy = rate * service_s / burst_cores
    alone = service_s / pace(busy, entitled, servers, physics.pace_power)
    queued = physics.queued(busy, servers)
    # At full load, waiting grows to the value at the least remaining capacity.
    burst_s = bursts * service_s / (burst_cores * np.maximum(1.0 - busy, 0.02))
    lock = serial_s / (1.0 - np.minimum(0.97, rate * serial_s))
    backlog_s = np.where(backlog > 0, backlog / np.maximum(rate, _TINY), 0.0)
    response = alone + lock + other_s + backlog_s
    wait = alone - service_s + np.minimum(queued * burst_s / bursts, 0.05) + backlog_s * 0.1
    return Loop(rate, response, wait, queued, burst_s)


def quantiles(loop: Loop, sigma: Array, physics: Physics = PRESENT) -> tuple[Array, Array, Array]:
    """p50, p95, p99 (s): a log-normal response, plus a wait (at present exponential) for the share
    ``loop.queued`` of the requests.
    """
    mean = loop.response_s
    median = mean / np.exp(sigma * sigma / 2.0)

    def above(level: float, z: float) -> Array:
        body = median * np.exp(sigma * z) if z else median
        tail = mean + loop.burst_s * physics.tail(np.log(np.maximum(loop.queued, level) / level))
        result: Array = np.where(loop.queued > level, np.maximum(body, tail), body)
        return result

    return above(0.5, 0.0), above(0.05, _Z95), above(0.01, _Z99)
