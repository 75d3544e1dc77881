"""The workloads of a node as arrays with one element per workload, for the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perphd.sim.node.grant import Array
from perphd.sim.node.workload import NodeWorkload, Requests

_BATCH = Requests(clients=1, mix_cost=0.0, mix_relief=0.0, bursts=1.0)


@dataclass(slots=True)
class Population:
    """``NodeWorkload``'s fields for W workloads. ``lra`` and ``closed`` are 0 or 1."""

    workloads: tuple[NodeWorkload, ...]
    lra: Array
    closed: Array
    clients: Array
    rate: Array
    threads: Array
    serial_s: Array
    wait_s: Array
    think_s: Array
    crosstalk: Array
    switch_cost: Array
    mix_cost: Array
    mix_relief: Array
    neighbour_cost: Array
    spread: Array
    bursts: Array
    queue_limit: Array
    instructions: Array
    cpi: Array
    miss_cycles: Array
    mpki_floor: Array
    mpki_swing: Array
    mpki_scale: Array
    refs_pki: Array
    written: Array
    footprint: Array
    smt_loss: Array
    anon: Array
    cache: Array
    pages: Array
    hot_share: Array
    hot_hits: Array
    disk_ops: Array
    disk_bytes: Array
    net_bytes: Array
    pollution: Array

    @property
    def count(self) -> int:
        """W, the number of workloads."""
        return len(self.workloads)


def population(workloads: Sequence[NodeWorkload]) -> Population:
    """Arrays of these workloads."""

    def column(value: Callable[[NodeWorkload, Requests], float]) -> Array:
        return np.array([float(value(w, w.requests or _BATCH)) for w in workloads])

    return Population(
        workloads=tuple(workloads),
        lra=column(lambda w, r: w.requests is not None),
        closed=column(lambda w, r: w.requests is not None and r.closed),
        clients=column(lambda w, r: r.clients or 1.0),
        rate=column(lambda w, r: r.rate_per_s or 0.0),
        threads=column(lambda w, r: w.threads),
        serial_s=column(lambda w, r: r.serial_ms / 1000.0),
        wait_s=column(lambda w, r: r.wait_ms / 1000.0),
        think_s=column(lambda w, r: r.think_ms / 1000.0),
        crosstalk=column(lambda w, r: r.crosstalk),
        switch_cost=column(lambda w, r: r.switch_cost),
        mix_cost=column(lambda w, r: r.mix_cost),
        mix_relief=column(lambda w, r: r.mix_relief),
        neighbour_cost=column(lambda w, r: r.neighbour_cost),
        spread=column(lambda w, r: r.spread),
        bursts=column(lambda w, r: r.bursts),
        queue_limit=column(lambda w, r: r.queue_limit or math.inf),
        instructions=column(lambda w, r: w.code.instructions),
        cpi=column(lambda w, r: w.code.cpi),
        miss_cycles=column(lambda w, r: w.code.miss_cycles),
        mpki_floor=column(lambda w, r: w.code.mpki_floor),
        mpki_swing=column(lambda w, r: w.code.mpki_swing),
        mpki_scale=column(lambda w, r: w.code.mpki_scale_bytes),
        refs_pki=column(lambda w, r: w.code.refs_pki),
        written=column(lambda w, r: 1.0 + w.code.writeback),
        footprint=column(lambda w, r: min(w.code.footprint_bytes, math.inf)),
        smt_loss=column(lambda w, r: 1.0 - w.code.smt_speed),
        anon=column(lambda w, r: w.memory.anon_bytes),
        cache=column(lambda w, r: w.memory.cache_bytes),
        pages=column(lambda w, r: w.memory.pages_per_op),
        hot_share=column(lambda w, r: w.memory.hot_share),
        hot_hits=column(lambda w, r: w.memory.hot_hits),
        disk_ops=column(lambda w, r: w.io.disk_ops),
        disk_bytes=column(lambda w, r: w.io.disk_read_bytes + w.io.disk_write_bytes),
        net_bytes=column(lambda w, r: w.io.net_bytes),
        pollution=column(lambda w, r: w.pollution),
    )
