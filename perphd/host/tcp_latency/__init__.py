"""Request rate and latency of a TCP server, measured passively by two BPF programs at its control group."""

from perphd.host.tcp_latency.counts import LatencyCounter, TcpCounts
from perphd.host.tcp_latency.histogram import percentile_ms
from perphd.host.tcp_latency.placement import HookPlace, Placement, find_place
from perphd.host.tcp_latency.probe import TcpProbe, probe_refusal

__all__ = [
    "LatencyCounter",
    "HookPlace",
    "Placement",
    "TcpCounts",
    "TcpProbe",
    "find_place",
    "percentile_ms",
    "probe_refusal",
]
