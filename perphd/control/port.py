"""The interface that the control API requires from the agent. The agent and the tests' fake implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from perphd.agent.rounds import Round
from perphd.agent.tally import Tally
from perphd.config.file import Config
from perphd.domain.belief import ModelOrigin, ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.decision import Consequences, Decision
from perphd.domain.event import Event
from perphd.domain.policy import Snapshot
from perphd.domain.reading import Unavailable
from perphd.domain.status import AgentStatus
from perphd.domain.suggestion import Suggestion
from perphd.domain.topology import Topology
from perphd.domain.whatif import Arrival, WhatIf
from perphd.domain.workload import Mode, WorkloadSpec
from perphd.sizing.memory_fit import FitView
from perphd.sizing.shaper_view import ShaperView
from perphd.trial.design import Request
from perphd.trial.record import TrialRecord

if TYPE_CHECKING:
    from perphd.agent.queue.batch_queue import BatchQueue
    from perphd.monitor.sli import SliReading

Done = Awaitable[Any] | None
"""Result of an operation that may be a plain function or a coroutine function."""


class AgentPort(Protocol):
    """The agent as the control API uses it. Workload names are checked before the call."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """Workloads declared by match, whether or not a control group was found for them."""

    @property
    def capabilities(self) -> Capabilities:
        """The host's capabilities: as probed at start, with the present state of resctrl and of measurements."""

    @property
    def topology(self) -> Topology:
        """The host's processors at the last round."""

    @property
    def queue(self) -> BatchQueue | None:
        """The batch queue; None if there is none."""

    async def oom_order(self) -> tuple[str, ...]:
        """Workloads that the kernel would kill for lack of memory before workloads of a lower band, and the remedy."""

    def bands(self) -> tuple[str, ...]:
        """The mechanisms of each declared band on this host, and the substitutes for absent ones."""

    def contended(self) -> tuple[ContendedDevice, ...]:
        """The devices from which batch backs off at present."""

    @property
    def tally(self) -> Tally:
        """The counters since the start."""

    def status(self) -> AgentStatus:
        """The agent's present status."""

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, made at or before ``at_s`` (monotonic).

        For batch: decisions about LRAs that changed its settings.
        """

    def consequences(self, decision: Decision) -> Consequences:
        """The writes and the outcome of a decision."""

    def shaper(self) -> ShaperView:
        """The resource shaper: targets, workloads that make room, and reclaimable memory."""

    def memory_fits(self) -> tuple[FitView, ...]:
        """All searches for a memory limit."""

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """Start a search for a workload's memory limit. Raises ConfigError if it is refused."""

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        """Keep a search's result in force; returns the limit."""

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        """End a search, or remove its applied limit."""

    def whatif(self, arrival: Arrival) -> WhatIf:
        """Predicted effect on the LRAs if this work arrived now."""

    def snapshot(self) -> Snapshot:
        """The host and its workloads as a policy would see them now."""

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Undeclared groups that the operator should declare, the most harmful first."""

    def models(self) -> tuple[ModelSummary, ...]:
        """Summaries of the LRAs' models."""

    def model_view(self, lra: str) -> ModelView:
        """The full state of an LRA's model."""

    def model_origin(self, workload: str) -> ModelOrigin:
        """The origin of a workload's model and of its forecasts."""

    def export_model(self, lra: str) -> str:
        """The model as the text of a file."""

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the model in ``text``, and return warnings.

        Raises ModelFileError if the text is refused; the old model then stays.
        """

    async def reset_model(self, lra: str) -> None:
        """Discard an LRA's model."""

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> Done:
        """Set observe or enforce for one workload, or for all (which clears the modes of individual workloads)."""

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> Any:
        """Restore the original values and change nothing for ``for_s`` seconds (None: until ``resume``).

        Returns the pause and the restore report, as dataclasses.
        """

    async def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """Start a randomised trial. Raises ConfigError if that is impossible now."""

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        """End the running trial. Raises ConfigError if none is running."""

    def trial(self) -> TrialRecord | None:
        """The running trial, else the last one."""

    async def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """End the pause of a workload (None: every manual pause). Returns the pauses that were ended."""

    def add_workload(self, spec: WorkloadSpec, by: Actor | None = None) -> Done:
        """Add this workload. Raises ConfigError if it is refused."""

    def remove_workload(self, name: str, by: Actor | None = None) -> Done:
        """Restore the workload's settings and forget it."""

    def push_sli(self, workload: str, reading: SliReading) -> Done:
        """Accept a reading from the application itself. Raises ConfigError if its SLI source is not ``push``."""

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> Any:
        """Restore every original value; returns the report, as a dataclass.

        ``ignore_lock``: remove resctrl groups although another program holds resctrl's lock.
        """

    def forecasts(self) -> bytes | Unavailable:
        """The forecast worker's latest publication, as JSON; or the reason why there is none."""

    def rounds(self) -> AsyncIterator[Round]:
        """Every complete decision round from now on; ends when the agent stops."""

    def subscribe(self) -> AsyncIterator[Event]:
        """All events from now on; ends when the agent stops."""
