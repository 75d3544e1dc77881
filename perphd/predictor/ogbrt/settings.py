"""Settings of the online learner, and its result types."""

from __future__ import annotations

from dataclasses import dataclass, field

from perphd.predictor.ogbrt.drift import DriftSettings
from perphd.predictor.ogbrt.fit import FitSettings
from perphd.predictor.ogbrt.trees import Floats
from perphd.predictor.ogbrt.update import UpdateSettings


@dataclass(frozen=True, slots=True)
class OgbrtSettings:
    """Settings of the learner.

    Attributes:
        update, drift, fit: see their classes.
        bags: number of bootstrap replicas.
        miss_rate: share of samples that a band may miss.
        gate_mape: largest mean relative error at which the model may act.
        gate_samples: live samples before it may act.
        noise_sd: initial estimate of one sample's noise (log units).
        prior_sd: uncertainty of a warm start without samples (log units).
        rebuild_every: samples between rebuilds; 0: never. A model without a warm start is rebuilt sooner: first after
            ``first_rebuild`` samples, then whenever their number has doubled.
        first_rebuild: see ``rebuild_every``.
        rebuild_after_drift: samples between an alarm and the rebuild it causes.
        trial_samples, trial_margin: length of a trial, and the relative reduction of squared error with which a
            challenger wins. The reduction is large, because in measurements, unnecessary rebuilds predicted the
            next sample equally well and were often worse at other places.
        old_weight: weight of a remembered sample from before the last change, relative to a new one.
        recent_half_life: half-life of the weights of samples since the last change, in samples.
        reservoir: maximum number of remembered samples.
        seed: seed of the bootstrap.
    """

    update: UpdateSettings = field(default_factory=UpdateSettings)
    drift: DriftSettings = field(default_factory=DriftSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    bags: int = 5
    miss_rate: float = 0.1
    gate_mape: float = 0.2
    gate_samples: int = 10
    noise_sd: float = 0.04
    prior_sd: float = 0.3
    rebuild_every: int = 600
    first_rebuild: int = 60
    rebuild_after_drift: int = 120
    trial_samples: int = 120
    trial_margin: float = 0.4
    old_weight: float = 0.3
    recent_half_life: float = 300.0
    reservoir: int = 1024
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TreePrediction:
    """Predictions for n rows, each of shape (n,), in log units.

    Attributes:
        mean: expected log-performance.
        sd: calibrated standard deviation of that expectation, without the noise of a sample.
        lower, upper: band that a single sample misses at the wanted rate.
        support: samples since the last change that support the row, discounted by distance.
    """

    mean: Floats
    sd: Floats
    lower: Floats
    upper: Floats
    support: Floats


@dataclass(frozen=True, slots=True)
class Learned:
    """Result of learning one sample.

    Attributes:
        error: y - F(x) in log units before learning; NaN if the sample was not used.
        skipped: reason why the sample was not used; empty if it was used.
        drift: whether it raised the drift alarm.
        missed: whether it was outside its band.
        swapped: whether a rebuilt model took over after it.
        far: its distance from places seen since the last change, 0 to 1.
    """

    error: float
    skipped: str = ""
    drift: bool = False
    missed: bool = False
    swapped: bool = False
    far: float = 1.0
