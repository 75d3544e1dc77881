"""Service-level indicators (SLIs): an application's own work rate, load and latency.

Each source has a module. Its dependencies are imported when a source is opened, so unused sources cost nothing.
"""

from perphd.monitor.sli.open import open_source
from perphd.monitor.sli.options import OPTIONS, Option, measured_percentiles, plain_value, validate_options
from perphd.monitor.sli.push import PushSource
from perphd.monitor.sli.reading import PUSHED_FIELDS, SLI_FIELDS, NotedSource, SliReading, SliSource, told

__all__ = [
    "OPTIONS",
    "PUSHED_FIELDS",
    "SLI_FIELDS",
    "NotedSource",
    "Option",
    "PushSource",
    "SliReading",
    "SliSource",
    "measured_percentiles",
    "open_source",
    "plain_value",
    "told",
    "validate_options",
]
