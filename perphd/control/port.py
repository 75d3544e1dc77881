"""What the control API needs of the agent; the real one and the tests' both satisfy it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from perphd.agent.rounds import Round
from perphd.agent.tally import Tally
from perphd.config.file import Config
from perphd.domain.belief import ModelSummary, ModelView
from perphd.domain.capability import Capabilities
from perphd.domain.contention import ContendedDevice
from perphd.domain.control import Actor, Pause
from perphd.domain.decision import Aftermath, Decision
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
"""Answer of an operation that may be a plain function or a coroutine function."""


class AgentPort(Protocol):
    """The agent as the control API sees it. Names of workloads were checked before they come here."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def declared(self) -> tuple[WorkloadSpec, ...]:
        """The workloads whose control groups are looked for, whether anything was found for them or not."""

    @property
    def capabilities(self) -> Capabilities:
        """What the host can do, as found at start."""

    @property
    def topology(self) -> Topology:
        """The host's processors, as found at start."""

    @property
    def queue(self) -> BatchQueue | None:
        """The batch queue; None: there is none here."""

    def contended(self) -> tuple[ContendedDevice, ...]:
        """The devices that batch is backed off from now."""

    @property
    def tally(self) -> Tally:
        """The counters since the start."""

    def status(self) -> AgentStatus:
        """The agent as a whole, now."""

    def decisions(self, workload: str, at_s: float | None = None, limit: int = 20) -> tuple[Decision, ...]:
        """The latest decisions about this LRA, newest first, none made after ``at_s`` (monotonic)."""

    def aftermath(self, decision: Decision) -> Aftermath:
        """The writes and the outcome of a decision."""

    def shaper(self) -> ShaperView:
        """The resource shaper: targets, who makes room, what could be lent."""

    def memory_fits(self) -> tuple[FitView, ...]:
        """Every search for a memory limit."""

    def start_memory_fit(self, name: str, samples: int, step: float, by: Actor | None = None) -> None:
        """Begin to search a workload's memory limit. Raises ConfigError if that is refused."""

    def apply_memory_fit(self, name: str, by: Actor | None = None) -> int:
        """Keep what a search has found in force; returns the limit."""

    def stop_memory_fit(self, name: str, by: Actor | None = None) -> None:
        """End a search, or take back what was applied."""

    def whatif(self, arrival: Arrival) -> WhatIf:
        """What would become of the LRAs if this work came now."""

    def snapshot(self) -> Snapshot:
        """The host and its workloads as a policy would see them now."""

    def suggestions(self) -> tuple[Suggestion, ...]:
        """Undeclared groups worth declaring, the worst first."""

    def models(self) -> tuple[ModelSummary, ...]:
        """The LRAs' models, in a line each."""

    def model_view(self, lra: str) -> ModelView:
        """All that an LRA's model believes."""

    def export_model(self, lra: str) -> str:
        """The model as the text of a file."""

    async def import_model(self, lra: str, text: bytes, rename: bool = False) -> tuple[str, ...]:
        """Replace an LRA's model by the one in this text; returns warnings. Raises ModelFileError: nothing changed."""

    async def reset_model(self, lra: str) -> None:
        """Discard what was learned about an LRA."""

    def set_mode(self, mode: Mode, workload: str | None = None, by: Actor | None = None) -> Done:
        """Observe or enforce, for one workload or for all that have no mode of their own."""

    async def pause(
        self, workload: str | None, for_s: float | None, reason: str, by: Actor | None = None
    ) -> Any:
        """Change nothing more and restore; answers the pause and what was restored, as dataclasses."""

    def start_trial(self, request: Request, by: Actor | None = None) -> TrialRecord:
        """Begin a randomised trial. Raises ConfigError if there can be none now."""

    def stop_trial(self, by: Actor | None = None) -> TrialRecord:
        """End the running trial. Raises ConfigError if none runs."""

    def trial(self) -> TrialRecord | None:
        """The trial that runs, else the last one."""

    def resume(self, workload: str | None, by: Actor | None = None) -> tuple[Pause, ...]:
        """End a pause (None: every one that was set by hand); answers those that were ended."""

    def add_workload(self, spec: WorkloadSpec, by: Actor | None = None) -> Done:
        """Take this workload into the loop. Raises ConfigError if it is refused."""

    def remove_workload(self, name: str, by: Actor | None = None) -> Done:
        """Give the workload's settings back and forget it."""

    def push_sli(self, workload: str, reading: SliReading) -> Done:
        """A reading from the application itself. Raises ConfigError if its SLI source is not ``push``."""

    async def restore(self, by: Actor | None = None, ignore_lock: bool = False) -> Any:
        """Put every original value back; answers what was done, as a dataclass.

        ``ignore_lock``: remove resctrl groups although another program holds resctrl's lock.
        """

    def forecasts(self) -> bytes | Unavailable:
        """What the forecast worker published last, as JSON; or why there is nothing."""

    def rounds(self) -> AsyncIterator[Round]:
        """Every round of decisions from now on, whole; ends when the agent stops."""

    def subscribe(self) -> AsyncIterator[Event]:
        """Everything that happens from now on; ends when the agent stops."""
