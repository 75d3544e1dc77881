"""The agent's state as Prometheus metrics: the table of series, their values, and access to them."""

from perphd.control.metrics.collect import Collector
from perphd.control.metrics.text import CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "Collector"]
