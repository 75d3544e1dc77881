"""Ends the agent: restores or keeps settings, saves models, and closes everything."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from perphd.agent.models import Models
from perphd.agent.round_clock import RoundClock
from perphd.agent.running_config import RunningConfig
from perphd.agent.workload_list import WorkloadList
from perphd.domain.errors import KernelError
from perphd.isolation.executor import Executor
from perphd.isolation.restore_report import RestoreReport


class Shutdown:
    """Restores or keeps the settings in force, and closes everything.

    Args:
        lock: held during a round, and by operations that must not overlap one.
        closing: closes everything that the agent holds open, whatever fails.
        config: tells whether models are saved.
        clock: the time of the last round.
        workloads: their models are saved.
        executor: restores or keeps the settings.
        models: saved once the settings are restored.
    """

    def __init__(
        self,
        *,
        lock: asyncio.Lock,
        closing: AsyncExitStack,
        config: RunningConfig,
        clock: RoundClock,
        workloads: WorkloadList,
        executor: Executor,
        models: Models,
    ) -> None:
        self._lock, self._closing, self._config, self._clock = lock, closing, config, clock
        self._workloads, self._executor, self._models = workloads, executor, models

    async def stop(self, restore: bool) -> RestoreReport | None:
        """See ``Agent.stop``."""
        report: RestoreReport | None = None
        async with self._lock, self._closing:
            if restore:
                report = await self._executor.restore()
            else:
                with suppress(KernelError):  # if this fails, the daemon's next start restores
                    self._executor.keep()
            save = self._clock.has_begun and self._config.now.daemon.model_save_s > 0
            self._models.close(self._workloads.all_specs(), self._clock.now_s, save)
        return report
