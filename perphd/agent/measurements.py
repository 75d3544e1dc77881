"""Keeps the measurements of the last round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perphd.domain.host_account import HostAccount
from perphd.domain.progress import NO_PROGRESS, Progress, advance
from perphd.domain.reading import NOT_MEASURED, Reading
from perphd.domain.sample import Quality, Sample
from perphd.domain.workload import Kind, WorkloadSpec


class Measurements:
    """The samples of all workloads, and the readings about the host.

    ``account``: the host's account. ``busy_cores``, ``network_pct``: the host's load. ``full_samples``: each
    workload's last sample with a new report of its indicators. ``progress``: recent work of batch.
    """

    def __init__(self) -> None:
        self._samples: dict[str, Sample] = {}
        self._full_samples: dict[str, Sample] = {}
        self._progress: dict[str, Progress] = {}
        self.account: HostAccount | None = None
        self.busy_cores: Reading = NOT_MEASURED
        self.network_pct: Reading = NOT_MEASURED

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The newest samples by workload."""
        return self._samples

    @property
    def full_samples(self) -> Mapping[str, Sample]:
        """Each workload's last sample with a new report of its indicators."""
        return self._full_samples

    def progress(self, name: str) -> Progress:
        """The recent work of a batch workload."""
        return self._progress.get(name, NO_PROGRESS)

    def is_present(self, name: str) -> bool:
        """True if the workload has a sample and its control group existed then."""
        sample = self._samples.get(name)
        return sample is not None and not sample.has(Quality.GONE)

    def take(self, samples: Iterable[Sample], specs: Sequence[WorkloadSpec]) -> None:
        """Take the samples of a new round."""
        self._samples = {sample.workload: sample for sample in samples}
        self._full_samples = {
            name: sample if not sample.has(Quality.BETWEEN) else self._full_samples.get(name, sample)
            for name, sample in self._samples.items()
        }
        self._progress = {
            spec.name: advance(self.progress(spec.name), self._samples.get(spec.name))
            for spec in specs
            if spec.kind is Kind.BATCH
        }

    def forget(self, name: str) -> None:
        """Forget measurements of a workload whose control group was replaced or removed."""
        self._samples.pop(name, None)
        self._progress.pop(name, None)
