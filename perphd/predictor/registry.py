"""All models of a host, one per LRA, by name."""

from __future__ import annotations

from perphd.predictor.model import LraModel


class Registry:
    """Hands out models; a workload that is removed loses its model, one that restarts keeps it."""

    def __init__(self) -> None:
        self._models: dict[str, LraModel] = {}

    def model(self, workload: str) -> LraModel:
        """The LRA's model, made at first use."""
        return self._models.setdefault(workload, LraModel())

    def put(self, workload: str, model: LraModel) -> None:
        """Give the LRA this model instead of the one that it has."""
        self._models[workload] = model

    def forget(self, workload: str) -> None:
        """Drop the model of a workload that was taken off the list."""
        self._models.pop(workload, None)
