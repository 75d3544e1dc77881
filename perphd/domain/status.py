"""What the running agent tells about itself: the answer to ``perphctl status`` and the source of metrics."""

from __future__ import annotations

from dataclasses import dataclass

from perphd.domain.allocation import Allocation, Settings
from perphd.domain.control import Pause
from perphd.domain.decision import Action, Decision, Outcome
from perphd.domain.forecast import ForecastSummary
from perphd.domain.host_account import HostAccount
from perphd.domain.plan import NotEnforceable
from perphd.domain.queue import QueueSummary
from perphd.domain.reading import NOT_MEASURED, Reading, Unavailable
from perphd.domain.sample import Sample
from perphd.domain.workload import Mode, WorkloadSpec


@dataclass(frozen=True, slots=True)
class WorkloadStatus:
    """One workload now. ``present``: its cgroup exists; ``in_force``: what perphd has set on it.

    ``not_enforceable``: what cannot be set on it here; ``limited``: what was wanted last and is not in force, or
    only in part, or was to be given back and is not, with the reason. ``expected_false_alarms_per_day``: of an LRA,
    what its own noise promises of the detector. ``pause``: why nothing is changed of it now; ``mode`` is then
    observe. ``full_sample``: the last one whose indicators were due: what stands between two reports of a source.
    ``sli_resolution``: how often it reports, in words; empty where there is none.
    ``condition``: of batch what it does (``domain.condition``), of an LRA what its health does not say; ``starved_s``:
    for how long batch has waited for a CPU and got none; ``recent_cores``: its CPU time over the last ten seconds, per
    second.
    ``sli_resolution``: how often it reports, in words; empty where there is none. ``would``: the last decision in
    observe that would have changed something.
    """

    spec: WorkloadSpec
    present: bool
    mode: Mode
    sample: Sample | None
    decision: Decision | None
    outcome: Outcome | None
    protection: Allocation | None
    in_force: Settings
    not_enforceable: tuple[NotEnforceable, ...] = ()
    problem: str = ""
    limited: tuple[NotEnforceable, ...] = ()
    expected_false_alarms_per_day: Reading = NOT_MEASURED
    pause: Pause | None = None
    full_sample: Sample | None = None
    sli_resolution: str = ""
    condition: str = ""
    starved_s: float = 0.0
    recent_cores: Reading = NOT_MEASURED
    would: Decision | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A decision that changed an LRA's protection, or in ``mode`` observe would have. ``at_s``: monotonic."""

    at_s: float
    workload: str
    action: Action
    before: Allocation
    after: Allocation
    mode: Mode | None
    reason: str


@dataclass(frozen=True, slots=True)
class SelfCost:
    """What the daemon itself uses, measured by itself."""

    cpu_pct: Reading
    rss_bytes: Reading
    open_fds: Reading
    tick_ms_p50: Reading
    tick_ms_p99: Reading
    decide_to_written_ms_p99: Reading
    missed_ticks: int


@dataclass(frozen=True, slots=True)
class DetectorTest:
    """The detector's arithmetic on made noise, at the start.

    ``expected_per_day``: false alarms that this noise promises, beside ``accepted_per_day``;
    ``found_after_samples``: in how many samples a drop of two sigma was found, in the median.
    """

    accepted_per_day: float
    expected_per_day: Reading
    found_after_samples: Reading


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """A running trial. ``block`` 0 is the run-in; ``void``: why the present block does not count, else empty."""

    trial: str
    block: int
    blocks: int
    mode: Mode
    ends_unix_s: float
    void: str = ""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The agent as a whole. ``problems``: sentences that an operator should read; ``notes``: what cannot be seen
    here.

    ``period_s``: the usual time between two samples; ``pace_s``: that until the next one, which is shorter while
    something is in flux: ``attentive`` says what (empty at the usual pace). ``trial``: the one that runs.
    ``extra_ticks``: looks between two samples that pressure, batch that started or a pushed reading asked for.
    ``configured_mode``: the mode in the configuration, which holds again after a restart. ``pauses``: every pause
    in force. ``host``: who uses the host; None until two ticks were made. ``forecast``: of the forecast worker;
    None: it is switched off. ``changes``: the last ones, newest first. ``window``: the change window while it is
    closed, else empty. ``llc_ways``: ways of each last-level cache that can be given out, 0: none can;
    ``llc_shareable``: mask of those that devices fill, too. ``queue``: the batch queue; None: there is none.
    """

    version: str
    mode: Mode
    policy: str
    period_s: float
    pace_s: float
    attentive: str
    tick: int
    extra_ticks: int
    uptime_s: float
    workloads: tuple[WorkloadStatus, ...]
    journal_entries: int
    cost: SelfCost
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    detector_test: DetectorTest | None = None
    configured_mode: Mode = Mode.OBSERVE
    pauses: tuple[Pause, ...] = ()
    host: HostAccount | None = None
    forecast: ForecastSummary | Unavailable | None = None
    trial: TrialStatus | None = None
    changes: tuple[Change, ...] = ()
    window: str = ""
    llc_ways: int = 0
    llc_shareable: int = 0
    queue: QueueSummary | None = None
