"""Forgets values about a workload that its change makes invalid."""

from __future__ import annotations

from perphd.agent.enforceable import EnforceableKnobs
from perphd.agent.indicators import Indicators
from perphd.agent.measurements import Measurements
from perphd.agent.planned import PlannedSettings
from perphd.agent.protections import Protections


class WorkloadTraces:
    """Passes changes of workloads on to every object that keeps values about them."""

    def __init__(
        self,
        *,
        protections: Protections,
        enforceable: EnforceableKnobs,
        measurements: Measurements,
        indicators: Indicators,
        planned: PlannedSettings,
    ) -> None:
        self._protections, self._enforceable, self._measured = protections, enforceable, measurements
        self._indicators, self._planned = indicators, planned

    def forget(self, name: str) -> None:
        """Forget a workload whose control group was replaced or removed."""
        for kept in (self._protections, self._enforceable, self._measured):
            kept.forget(name)
        self._outdate()

    def declaration_changed(self, name: str) -> None:
        """Check again what can be set on a workload with a changed declaration."""
        self._enforceable.forget(name)
        self._outdate()

    def configuration_changed(self) -> None:
        """Check again what can be set on every workload."""
        self._enforceable.clear()
        self._outdate()

    def _outdate(self) -> None:
        self._indicators.outdate()
        self._planned.discard()
