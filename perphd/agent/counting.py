"""Selects the workloads whose cache occupancy and memory bandwidth are measured, and explains gaps."""

from __future__ import annotations

from perphd.agent.measurements import Measurements
from perphd.agent.modes import Modes
from perphd.agent.running_config import RunningConfig
from perphd.agent.workload_list import WorkloadList
from perphd.domain.capability import Area, Capabilities, Capability
from perphd.domain.quick import maker
from perphd.domain.reading import available, value_or
from perphd.domain.sample import Quality
from perphd.domain.signals import CPU_TIME_ONLY, NO_MISSES, performance
from perphd.domain.workload import Kind, Mode
from perphd.host.capabilities.resctrl_counters import MONITORING, MONITORING_COST
from perphd.isolation.executor import Executor
from perphd.isolation.monitor_groups import NO_THREADS, NOT_ASKED, Asked

_SHOWN = 3
_FRESH = (Quality.FIRST, Quality.RESTARTED)
_make_asked = maker(Asked)


class MeasuredWorkloads:
    """Selects the workloads that may have a monitor group, and explains why others are not measured."""

    def __init__(
        self,
        *,
        config: RunningConfig,
        workloads: WorkloadList,
        modes: Modes,
        measurements: Measurements,
        executor: Executor,
    ) -> None:
        self._config, self._workloads, self._modes = config, workloads, modes
        self._measured, self._executor = measurements, executor

    def asked(self) -> tuple[Asked, ...]:
        """Workloads that may have a monitor group: enforced ones, and observed ones if the operator allows it."""
        everybody = self._config.now.resctrl.monitor_in_observe
        missing = self._executor.counted.missing
        found = []
        for spec in self._workloads.all_specs():
            sample = self._measured.samples.get(spec.name)
            if sample is None or sample.has(Quality.GONE):
                continue
            if everybody or self._modes.of(spec) is Mode.ENFORCE:
                usage_cores = value_or(sample.cpu_usage_cores, 0.0)
                began = usage_cores > 0.0 and missing.get(spec.name) is NO_THREADS
                found.append(_make_asked(spec, usage_cores, began or sample.has(*_FRESH)))
        return tuple(found)

    async def follow(self, now_s: float) -> None:
        """Give monitor groups to the workloads that may have them now."""
        await self._executor.follow_counted(self.asked(), now_s)

    def notes(self) -> tuple[str, ...]:
        """Reasons why cache use and bandwidth of workloads are not measured on a host that can measure them."""
        counted = self._executor.counted
        lines = list(counted.notes)
        if counted.otherwise is NOT_ASKED and not self._config.now.resctrl.monitor_in_observe:
            specs = self._workloads.all_specs()
            observed = [spec.name for spec in specs if self._modes.of(spec) is not Mode.ENFORCE]
            if observed:
                lines.append(
                    f"cache occupancy and memory bandwidth of {_names(observed)} are not measured: observing creates "
                    "no resctrl groups; allow them with [tuning.resctrl] monitor_in_observe = true"
                )
        lines += self._blind()
        return tuple(lines)

    def _blind(self) -> list[str]:
        """Notes about LRAs whose work is known only as CPU time, and about those whose cache misses are unknown."""
        names: list[str] = []
        silent: list[str] = []
        causeless: list[str] = []
        for spec in self._workloads.all_specs():
            sample = self._measured.samples.get(spec.name)
            if spec.kind is not Kind.LRA or sample is None or sample.has(Quality.GONE):
                continue
            perf = performance(sample, spec.objective.latency_percentile)
            if perf.work_source == "cpu" and available(perf.work):
                target = names if spec.sli is None else silent
                target.append(spec.name)
            if perf.work_source == "mips" and available(sample.cpi) and not available(sample.llc_mpki):
                causeless.append(spec.name)
        lines = [f"{_names(names)}: {CPU_TIME_ONLY}; an SLI shows it"] if names else []
        if silent:
            lines.append(f"{_names(silent)}: {CPU_TIME_ONLY}, because the SLI gives no rate now")
        return [*lines, f"{_names(causeless)}: {NO_MISSES}"] if causeless else lines

    def completed(self, found: Capabilities) -> Capabilities:
        """The report with the present state of ``resctrl.monitoring``: available only if workloads are measured."""
        if not found.has(MONITORING):
            return found
        counted, specs = self._executor.counted, self._workloads.specs
        names = [name for name in specs if name in counted.counters]
        able = found[MONITORING].detail
        if names:
            detail = f"{able}; {len(names)} of {len(specs)} workloads are measured"
            now = Capability(MONITORING, Area.MEASURE, True, detail)
        else:
            remedy = "enforce the workloads, or set [tuning.resctrl] monitor_in_observe = true"
            reasons = {counted.why_not(name).reason: None for name in specs}
            detail = f"{able}, but no workload is measured: {'; '.join(reasons) or 'none is declared'}"
            if counted.otherwise is not NOT_ASKED or counted.missing:
                remedy = "see the reason; perphctl status shows what perphd waits for"
            now = Capability(MONITORING, Area.MEASURE, False, detail, MONITORING_COST, remedy)
        return Capabilities(tuple(now if item.name == MONITORING else item for item in found.items))


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
