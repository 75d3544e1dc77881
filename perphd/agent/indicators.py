"""Reads the applications' indicators in each round, and shows the notes of their sources."""

from __future__ import annotations

from collections.abc import Mapping

from perphd.agent.records import Records
from perphd.agent.round_clock import RoundClock
from perphd.agent.sli import SliBoard
from perphd.agent.triggers import EarlyTicks
from perphd.agent.workload_list import WorkloadList
from perphd.monitor.sli import SliReading


class Indicators:
    """Keeps the open sources in step with the list of workloads, and reads them."""

    def __init__(
        self,
        *,
        sli: SliBoard,
        clock: RoundClock,
        workloads: WorkloadList,
        early_ticks: EarlyTicks | None,
        records: Records,
    ) -> None:
        self._sli, self._clock, self._workloads = sli, clock, workloads
        self._early_ticks, self._records = early_ticks, records
        self._are_followed = False
        self._noted: set[str] = set()
        self._silent: set[str] = set()

    def outdate(self) -> None:
        """Open and close sources at the next reading, because workloads changed."""
        self._are_followed = False

    async def follow(self) -> None:
        """Open and close sources so that they match the list of workloads."""
        await self._sli.follow(self._workloads.all_specs())

    async def read(self, now_s: float) -> Mapping[str, SliReading]:
        """One reading per workload with a source; its notes are shown."""
        if not self._are_followed:
            await self.follow()
            self._are_followed = True
        readings = await self._sli.read(now_s)
        self._show_notes(now_s)
        self._show_silence(now_s)
        return readings

    def push(self, workload: str, reading: SliReading) -> None:
        """See ``Agent.push_sli``."""
        self._sli.push(workload, reading, self._clock.time_s(self._clock.now_s))
        spec = self._workloads.specs.get(workload)
        if self._early_ticks is not None and spec is not None:
            self._early_ticks.pushed(workload, spec.objective, reading)

    def _show_silence(self, now_s: float) -> None:
        """Show indicators that have given no numbers for long. The text varies, so only the first one is logged."""
        found = {spec.name: self._sli.silence(spec.name, now_s) for spec in self._workloads.all_specs()}
        silent = {name: f"{name}: {text}" for name, text in found.items() if text}
        for name in self._silent - silent.keys():
            self._records.problem(f"silent:{name}", None, now_s)
            self._records.healed(f"silent:{name}")
        for name, text in silent.items():
            self._records.problem(f"silent:{name}", text, now_s, about=f"silent:{name}")
        self._silent = set(silent)

    def _show_notes(self, now_s: float) -> None:
        """Show the notes of indicator sources about their readings, and clear notes that no longer apply."""
        notes = {f"sli:{name}": f"{name}: {note}" for name, note in self._sli.notes().items() if note}
        for key in self._noted - notes.keys():
            self._records.problem(key, None, now_s)
        for key, text in notes.items():
            self._records.problem(key, text, now_s)
        self._noted = set(notes)
