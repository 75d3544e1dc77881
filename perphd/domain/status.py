"""Status of the running agent, for ``perphctl status`` and metrics."""

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
    """The present state of one workload.

    - ``present``: its cgroup exists; ``in_force``: the settings that perphd has applied to it.
    - ``full_sample``: the last sample that holds a new report of the workload's SLI.
    - ``not_enforceable``: settings that cannot be applied here.
    - ``limited``: settings wanted last that are not, or only partly, in force; and settings not restored yet.
      Each has its reason.
    - ``expected_false_alarms_per_day``: false alarms per day that the detector expects from the LRA's noise.
    - ``pause``: why perphd changes nothing at present, and ``mode`` is observe; None without a pause.
    - ``sli_resolution``: reporting period of its SLI, in words; empty without an SLI.
    - ``sli_problem``: why its SLI gives no numbers in most samples; empty if it gives them.
    - ``condition``: see ``domain.condition``.
    - ``starved_s``: seconds for which batch has waited for a CPU without getting any; ``recent_cores``: its
      mean CPU use over the last ten seconds.
    - ``would``: the last decision in observe mode that would have changed something.
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
    sli_problem: str = ""
    condition: str = ""
    starved_s: float = 0.0
    recent_cores: Reading = NOT_MEASURED
    would: Decision | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an LRA's protection or, in ``mode`` observe, one that would have been made.

    ``at_s``: monotonic. ``to_best``: see ``Decision``.
    """

    at_s: float
    workload: str
    action: Action
    before: Allocation
    after: Allocation
    mode: Mode | None
    reason: str
    to_best: bool = False


@dataclass(frozen=True, slots=True)
class SelfCost:
    """The daemon's own resource use, as the daemon measures it."""

    cpu_pct: Reading
    rss_bytes: Reading
    open_fds: Reading
    tick_ms_p50: Reading
    tick_ms_p99: Reading
    decide_to_written_ms_p99: Reading
    missed_ticks: int


@dataclass(frozen=True, slots=True)
class DetectorTest:
    """Self-test of the detector's arithmetic on synthetic noise, at start.

    ``accepted_per_day``: false alarms per day that the configuration accepts. ``expected_per_day``: false alarms
    per day that the synthetic noise causes. ``found_after_samples``: median number of samples after which the
    detector found a drop of two standard deviations.
    """

    accepted_per_day: float
    expected_per_day: Reading
    found_after_samples: Reading


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """A running trial.

    ``block``: number of the present block; 0 is the run-in. ``void``: why this block does not count; empty if it
    counts.
    """

    trial: str
    block: int
    blocks: int
    mode: Mode
    ends_unix_s: float
    void: str = ""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The state of the agent as a whole.

    - ``problems``: sentences that an operator should act on. ``notes``: measurements that this host cannot provide.
    - ``period_s``: usual time between samples. ``pace_s``: time until the next sample, shorter during fast
      sampling. ``attentive``: reason for the fast sampling; empty at the usual pace.
    - ``extra_ticks``: early ticks requested by pressure, starting batch or a pushed reading.
    - ``configured_mode``: mode in the configuration, which applies again after a restart.
    - ``pauses``: all pauses in force. ``trial``: the running trial, None if there is none.
    - ``host``: CPU use and pressure of the whole host; None until the second tick.
    - ``forecast``: summary of the forecast worker; None: it is disabled.
    - ``changes``: latest changes, newest first.
    - ``window``: text of the change window while it is closed; empty while it is open.
    - ``llc_ways``: allocatable ways of each last-level cache; 0: none. ``llc_shareable``: mask of the ways
      that devices fill as well.
    - ``queue``: the batch queue; None: there is none.
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
