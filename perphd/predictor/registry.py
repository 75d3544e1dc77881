"""The models of a host, one per LRA, by name."""

from __future__ import annotations

from collections.abc import Iterator

from perphd.domain.learning import GATE_MAPE, Ablated, Learner
from perphd.predictor.model import LraModel


class Registry:
    """The models of all LRAs. A restarted workload keeps its model; a removed workload loses it.

    ``learner``, ``gate_mape``: settings of new models, see ``LraModel``.
    """

    def __init__(self, learner: Learner | Ablated | None = None, gate_mape: float = GATE_MAPE) -> None:
        self.learner, self.gate_mape = learner, gate_mape
        self._models: dict[str, LraModel] = {}

    def model(self, workload: str) -> LraModel:
        """The LRA's model, created on first use."""
        found = self._models.get(workload)
        if found is None:
            found = self._models[workload] = LraModel(self.learner, self.gate_mape)
        return found

    def all(self) -> Iterator[tuple[str, LraModel]]:
        """Every model with its LRA's name."""
        yield from self._models.items()

    def put(self, workload: str, model: LraModel) -> None:
        """Replace the LRA's model."""
        self._models[workload] = model

    def forget(self, workload: str) -> None:
        """Drop the model of a removed workload."""
        self._models.pop(workload, None)

    def rebuild_here(self) -> None:
        """Run due rebuilds at once in this process; used for hosts in virtual time."""
        for model in self._models.values():
            while (due := model.next_rebuild()) is not None:
                channel, job = due
                model.offer(channel, job.run())
