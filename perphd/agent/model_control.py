"""Answers requests about models and forecasts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perphd.agent.announcer import Announcer
from perphd.agent.forecasts import FORECASTS_OFF, ForecastProcess
from perphd.agent.model_view import model_view
from perphd.agent.models import Models
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.snapshots import Snapshots
from perphd.agent.workload_list import WorkloadList
from perphd.domain.belief import ModelOrigin, ModelSummary, ModelView
from perphd.domain.event import EventKind
from perphd.domain.reading import Unavailable
from perphd.domain.workload import Kind


class ModelControl:
    """Shows, replaces and resets models.

    ``lock``: held during a round, and by operations that must not overlap one.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        snapshots: Snapshots,
        models: Models,
        forecasts: ForecastProcess | None,
        announcer: Announcer,
    ) -> None:
        self._lock, self._config, self._clock = lock, config, clock
        self._workloads, self._snapshots = workloads, snapshots
        self._models, self._forecasts, self._announcer = models, forecasts, announcer

    def summaries(self) -> tuple[ModelSummary, ...]:
        """See ``Agent.models``."""
        specs = self._workloads.all_specs()
        return tuple(self._models.summary(spec) for spec in specs if spec.kind is Kind.LRA)

    def view(self, lra: str) -> ModelView:
        """See ``Agent.model_view``."""
        spec = self._workloads.lra(lra)
        model = self._models.model(lra)
        snapshot = self._snapshots.now()
        summary = self._models.summary(spec)
        return model_view(model, summary, snapshot, lra, self._config.now.policy.confidence_z)

    def origin(self, workload: str) -> ModelOrigin:
        """See ``Agent.model_origin``."""
        spec = self._workloads.workload(workload)
        found = self._models.origin(spec, self._workloads.application(workload))
        if self._forecasts is None or not self._config.now.federated.folder:
            return found
        return replace(found, forecasts=self._forecasts.origins(workload))

    def export(self, lra: str) -> str:
        """See ``Agent.export_model``."""
        return self._models.export(self._workloads.lra(lra), self._clock.now_s)

    async def take(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """See ``Agent.import_model``."""
        async with self._lock:
            now_s = self._clock.now_s
            spec = self._workloads.lra(lra)
            await self._models.written()
            await self._models.follow((spec,), now_s, self._workloads.application)
            warnings = await self._models.take(spec, text, now_s, rename)
        self._announcer.tell(EventKind.WORKLOAD, "model imported", lra)
        return warnings

    async def reset(self, lra: str) -> None:
        """See ``Agent.reset_model``."""
        async with self._lock:
            await self._models.written()
            self._models.reset(self._workloads.lra(lra), self._clock.now_s)
        self._announcer.tell(EventKind.WORKLOAD, "model reset", lra)

    def forecasts(self) -> bytes | Unavailable:
        """See ``Agent.forecasts``."""
        return Unavailable(FORECASTS_OFF) if self._forecasts is None else self._forecasts.published()
