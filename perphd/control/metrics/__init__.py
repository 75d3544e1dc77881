"""The agent's state as Prometheus metrics: which series exist, what they hold now, and who may fetch them."""

from perphd.control.metrics.collect import Collector
from perphd.control.metrics.text import CONTENT_TYPE

__all__ = ["CONTENT_TYPE", "Collector"]
