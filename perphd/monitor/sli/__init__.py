"""Service-level indicators: what an application says about its own work rate, load and latency.

One module a source; whatever a source needs is imported when one is opened, so unused ones cost nothing.
"""

from perphd.monitor.sli.reading import SLI_FIELDS, SliReading, SliSource

__all__ = ["SLI_FIELDS", "SliReading", "SliSource"]
