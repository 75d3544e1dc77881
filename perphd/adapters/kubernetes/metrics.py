"""Exports metrics of the extender and the publisher. Series of nodes come from the documents at each scrape."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from perphd.cluster.document import NodeDocument, is_current
from perphd.domain.decision import Health
from perphd.domain.reading import Reading, available

TEXT: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
VERBS: Final = ("filter", "prioritize", "preempt", "bind")


class ExtenderMetrics:
    """Counters of calls, and gauges of the fleet. ``registry`` holds all of them."""

    def __init__(self, fleet: Collector) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "perphd_extender_call_seconds",
            "Duration of a call, from the end of its body to the encoded answer.",
            ("verb",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.errors = Counter(
            "perphd_extender_call_errors",
            "Calls that the extender could not parse.",
            ("verb",),
            registry=self.registry,
        )
        self.decisions = Counter(
            "perphd_extender_decisions",
            "Filter calls by the pod's band; result: placeable, or refused where no candidate is left.",
            ("band", "result"),
            registry=self.registry,
        )
        self.binds = Counter(
            "perphd_extender_binds",
            "Bind calls; result: bound or refused.",
            ("result",),
            registry=self.registry,
        )
        for verb in VERBS:
            self.seconds.labels(verb)
            self.errors.labels(verb)
        for result in ("bound", "refused"):
            self.binds.labels(result)
        self.registry.register(fleet)


class FleetCollector(Collector):
    """Gauges of every node whose document is known. A missing reading has no sample."""

    def __init__(
        self,
        documents: Mapping[str, NodeDocument],
        unreadable: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._documents, self._unreadable, self._clock = documents, unreadable, clock

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads no documents."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All gauges at this time."""
        now_s, documents = self._clock(), dict(self._documents)
        stale = {
            name: not is_current(each.made_unix_s, each.ttl_s, now_s) for name, each in documents.items()
        }
        states = GaugeMetricFamily(
            "perphd_extender_nodes",
            "Nodes by their document: fresh, stale (past its time to live), or unreadable.",
            labels=("state",),
        )
        states.add_metric(["fresh"], sum(not each for each in stale.values()))
        states.add_metric(["stale"], sum(stale.values()))
        states.add_metric(["unreadable"], len(self._unreadable))
        yield states
        yield _by_node(
            "perphd_fleet_node_stale", "1: the node's document is older than its time to live.", stale
        )
        yield _by_node(
            "perphd_fleet_node_age_seconds",
            "Time since the node's document arrived.",
            {name: now_s - each.made_unix_s for name, each in documents.items()},
        )
        for name, text, read in _AMOUNTS:
            yield _by_node(name, text, {node: read(each) for node, each in documents.items()})
        lras = GaugeMetricFamily(
            "perphd_fleet_lras",
            "LRAs of a node by health; healthy and overprovisioned ones are on target.",
            labels=("node", "health"),
        )
        for node, each in documents.items():
            found = Tally(lra.health for lra in each.lras)
            for health in Health:
                lras.add_metric([node, health.value], found[health])
        yield lras


_AMOUNTS: Final[tuple[tuple[str, str, Callable[[NodeDocument], Reading]], ...]] = (
    ("perphd_fleet_node_cpus", "CPUs of the node.", lambda each: each.capacity.cpus),
    ("perphd_fleet_node_memory_bytes", "Memory of the node.", lambda each: each.capacity.memory_bytes),
    ("perphd_fleet_used_cpus", "CPUs used on the node, by any work.", lambda each: each.used.cpus),
    (
        "perphd_fleet_used_memory_bytes",
        "Memory used on the node, by any work.",
        lambda each: each.used.memory_bytes,
    ),
    ("perphd_fleet_copper_offered_cpus", "CPUs offered to copper.", lambda each: each.copper.offered.cpus),
    (
        "perphd_fleet_copper_offered_memory_bytes",
        "Memory offered to copper.",
        lambda each: each.copper.offered.memory_bytes,
    ),
    ("perphd_fleet_copper_used_cpus", "CPUs used by copper.", lambda each: each.copper.used.cpus),
    (
        "perphd_fleet_copper_used_memory_bytes",
        "Memory used by copper.",
        lambda each: each.copper.used.memory_bytes,
    ),
)


def _by_node(name: str, text: str, values: Mapping[str, Reading | bool]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=("node",))
    for node, value in values.items():
        if available(value):
            family.add_metric([node], float(value))
    return family


class PublisherMetrics(Collector):
    """Figures of one publisher: its rounds and its offers."""

    def __init__(self) -> None:
        self.rounds = {"published": 0, "failed": 0}
        self.models: Callable[[], Mapping[str, int]] | None = None
        self.published_unix_s = 0.0
        self.cpu_milli = self.memory_bytes = self.slots = 0
        self.is_tainted = False
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Return nothing, because no round has been completed yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All figures at this time."""
        rounds = CounterMetricFamily(
            "perphd_publish_rounds", "Rounds; result: published or failed.", labels=("result",)
        )
        for result, count in self.rounds.items():
            rounds.add_metric([result], count)
        yield rounds
        if self.models is not None:
            models = GaugeMetricFamily(
                "perphd_publish_models",
                "Contributions to models: shared (this host's), carried here, refused.",
                labels=("state",),
            )
            for state, number in self.models().items():
                models.add_metric([state], number)
            yield models
        if not self.published_unix_s:
            return
        for name, text, value in (
            ("perphd_publish_last_success_timestamp_seconds", "Last successful round.", self.published_unix_s),
            ("perphd_publish_offered_cpus", "CPUs published for copper.", self.cpu_milli / 1000.0),
            ("perphd_publish_offered_memory_bytes", "Memory published for copper.", self.memory_bytes),
            ("perphd_publish_tainted", "1: the node has the taint perphd.io/no-copper.", self.is_tainted),
            ("perphd_publish_slots", "Slots of the NodeProfile whose pods are not measured yet.", self.slots),
        ):  # fmt: skip
            yield GaugeMetricFamily(name, text, value=float(value))


def metrics_app(registry: CollectorRegistry) -> web.Application:
    """A server with only ``/metrics``."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers=TEXT)

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    return app
