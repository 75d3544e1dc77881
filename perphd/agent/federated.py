"""Exchanges models with other hosts: writes this host's contribution, and starts its new models from others'.

A topic is named after the application: the LRA, or the declaration for which LRAs were found. If several
replicas of an application are on this host, the document holds the statements of the replica with the most
evidence. The statements of a replica that is gone stay until another replica makes statements, because pods are
replaced more often than applications change. Without another replica they stay for an hour, because pods may start
late after a reboot. A new replica also starts from this host's own document, unless that document may hold the
replica's own statements.

When an LRA without a model appears, a short-lived thread reads the folder and pools what it finds, and a later tick
tries the start. A folder without documents may not be mounted yet and is read again later. So is one whose documents
cast doubt on this host's clock. After models were saved, the same thread replaces this host's document. The origin of
each start is stored beside the models, for ``perphctl model origin``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from perphd.agent.contribution_folder import ContributionFolder, contributor_name, this_host
from perphd.agent.forecast_scores import Reader, origin_hosts, read_scores, reader_text, written_at
from perphd.agent.records import Records
from perphd.config.file import Config
from perphd.domain.belief import ModelOrigin
from perphd.domain.errors import PerphError
from perphd.domain.event import Event, EventKind
from perphd.domain.topology import Topology
from perphd.domain.wire import decode, encode
from perphd.federated.contribution import Contribution, Statistic, fitting, spoken
from perphd.federated.hardware import Hardware
from perphd.federated.ledger import EVERY_GENERATION, ContributionLedger
from perphd.federated.pooling import Asking, Pooled, dating
from perphd.federated.replicas import EARLIER, last_here, of_present
from perphd.host.fs import KernelFs
from perphd.host.pmu import processor_name
from perphd.host.state_files import replace_text
from perphd.predictor import LraModel
from perphd.predictor.corrections import is_told
from perphd.predictor.federated import CHANNELS, KIND, contributed, pooled, start, topic_of
from perphd.predictor.persist import ModelFile
from perphd.predictor.registry import Registry
from perphd.predictor.trial import Start

log = logging.getLogger("perphd")

KEY: Final = "federated"
UNWRITTEN: Final = "contribution"
"""Keys of two problems in ``perphctl status``: one with the folder, one with this host's own document."""
ON_TRIAL: Final = "on trial against learning alone"
BEHIND: Final = "on trial, but so far worse than learning alone, which is in use"
KEPT: Final = "kept: it was not worse than learning alone"
LEFT: Final = "dropped: learning alone was better"
TOO_LITTLE: Final = "not used: too few hosts like this host know the application"
AGAIN_S: Final = 60.0
"""Seconds after which a folder without documents is read again."""


@dataclass(frozen=True, slots=True)
class _Met:
    """A new LRA: source of its SLI, its application, and whether this host's document may hold its own statements."""

    counted_by: str
    application: str
    again: bool


@dataclass(frozen=True, slots=True)
class _Asked:
    """Inputs of a start besides the folder: the SLI's source, and the application with its version.

    ``hears_own``: True if this host's own document counts as well.
    """

    counted_by: str
    version: str
    application: str
    hears_own: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    """Pooled contributions of other hosts about one application, and the resulting start.

    ``work``: None if there are too few contributions.
    """

    asked: _Asked
    told: Pooled
    work: Start | None
    delay: Start | None
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class _Read:
    """Result of reading the folder once.

    ``answers``: answers by LRA; None if the contributions about the LRA cannot be used. ``is_empty``: no other
    host's document could be read, or this host's clock is in doubt.
    """

    answers: Mapping[str, _Answer | None]
    problems: tuple[str, ...]
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Membership:
    """This host's role in the exchange.

    ``contribute``: whether this host writes its document. ``expire_s``: age from which a contribution is
    ignored.
    ``forecasts``: the forecast worker's folder, with its scores; None: they are not contributed.
    """

    name: str
    hardware: Hardware
    expire_s: float
    contribute: bool
    forecasts: Path | None = None


class Federated:
    """Exchange of models; see the module.

    Args:
        folder: the folder of contributions.
        origins: the folder in which origins are kept.
        membership: this host's role.
        records: receives problems and events.
        wall_clock: returns the time of day.
        inline: True: read without a thread, for virtual time.
    """

    def __init__(
        self,
        folder: ContributionFolder,
        origins: Path,
        membership: Membership,
        records: Records,
        wall_clock: Callable[[], float],
        inline: bool = False,
    ) -> None:
        self._folder, self._origins, self._membership = folder, origins, membership
        self._records, self._wall_clock, self._inline = records, wall_clock, inline
        self._name = contributor_name(membership.name)
        self._waiting: dict[str, _Met] = {}
        self._reading: Future[_Read] | None = None
        self._said: dict[str, dict[str, tuple[Statistic, ...]]] | None = None
        """Statements by application and LRA; ``EARLIER`` stands for replicas that are gone."""
        self._here_s: dict[str, float] = {}
        """Time at which each application of ``_said`` was last on this host, in seconds since the epoch."""
        self._taken_back: set[tuple[str, str]] = set()
        self._scores_s: int | None = None
        self._ahead: frozenset[str] = frozenset()
        self._again_s = -math.inf
        self._generation = 0
        self._unwritten = ""
        self._lock = Lock()
        self._unsaid: dict[str, ModelFile] = {}
        self._present: Mapping[str, str] = {}
        self._is_asked = self._is_contributing = False

    # -- starts ---------------------------------------------------------------------------------------------------

    def meet(self, lra: str, counted_by: str, application: str, again: bool = False) -> None:
        """Look for a start for the model of an LRA that is new to this host.

        Args:
            lra: its name.
            counted_by: source of its SLI.
            application: the name by which other hosts know it.
            again: True if its model was reset; the statements of the old model are then withdrawn.
        """
        self._waiting[lra] = _Met(counted_by, application, again)
        if again:
            with self._lock:
                self._taken_back.add((application, lra))

    def rename(self, lra: str, application: str) -> None:
        """Note that other hosts know this LRA by another name from now on."""
        met = self._waiting.get(lra)
        if met is not None:
            self._waiting[lra] = replace(met, application=application)

    def step(self, registry: Registry, versions: Callable[[str], str], now_s: float) -> dict[str, str]:
        """Call once per tick: start models whose contributions were read. Never waits.

        Returns the origin, in words, of each model that was started.
        """
        self._records.problem(UNWRITTEN, self._unwritten or None, now_s)
        if self._reading is None and self._waiting and now_s >= self._again_s:
            self._read({lra: _asked(lra, met, versions(lra)) for lra, met in self._waiting.items()})
        if self._reading is None or not self._reading.done():
            return {}
        read, self._reading = self._reading.result(), None
        self._records.problem(KEY, "; ".join(read.problems) or None, now_s)
        if read.is_empty:
            self._again_s = now_s + AGAIN_S
            for lra in [each for each in self._waiting if registry.model(each).cells]:
                del self._waiting[lra]
            return {}
        found = {}
        for lra, answer in read.answers.items():
            if answer is None:
                self._waiting.pop(lra, None)
                continue
            met = self._waiting.get(lra)
            if met is None or _asked(lra, met, versions(lra)) != answer.asked:
                continue  # the LRA was removed, or its version changed: ask again
            del self._waiting[lra]
            words = self._start(registry.model(lra), lra, answer)
            if words:
                found[lra] = words
                self._records.event(Event(now_s, EventKind.WORKLOAD, f"its model {words}", lra))
        return found

    def _read(self, asked: Mapping[str, _Asked]) -> None:
        future: Future[_Read] = Future()
        self._reading = future

        def read() -> None:
            try:
                topics = {
                    topic_of(each.application, channel) for each in asked.values() for channel in CHANNELS
                }
                ledger, problems = self._folder.read(topics)
                if why := self._why_wait(ledger):
                    future.set_result(_Read({}, (*problems, why), True))
                    return
                answers: dict[str, _Answer | None] = {}
                for lra, each in asked.items():
                    try:
                        answers[lra] = self._answer(lra, each, ledger)
                    except Exception as exc:  # this model starts empty; the others are not affected
                        log.exception("contributions of other hosts about %s cannot be used", lra)
                        answers[lra] = None
                        problems = (*problems, f"{lra}: contributions of other hosts cannot be used: {exc!r}")
                future.set_result(_Read(answers, problems, not ledger.contributions.keys() - {self._name}))
            except Exception as exc:  # models can start empty
                log.exception("%s cannot be read", self._folder.folder)
                future.set_result(_Read({}, (f"{self._folder.folder}: cannot be read: {exc!r}",), True))

        if not self._runs(read):
            self._reading = None

    def _why_wait(self, ledger: ContributionLedger) -> str:
        """Why models wait for this host's clock; empty if they need not. Else logs each host once that is ahead."""
        found = dating(ledger, self._asking(self._name))
        for name in () if found.why_wait else sorted(found.ahead.keys() - self._ahead):
            log.warning("%s: not used: %s", self._folder.folder / f"{name}.json", found.ahead[name])
        self._ahead = frozenset(found.ahead)
        return found.why_wait

    def _asking(self, name: str) -> Asking:
        here = self._membership
        return Asking(name, here.hardware, self._wall_clock(), here.expire_s)

    def _answer(self, lra: str, asked: _Asked, ledger: ContributionLedger) -> _Answer:
        here = self._membership
        asking = self._asking("" if asked.hears_own else self._name)
        told = {
            each: pooled(ledger, asked.application, each, asking, asked.counted_by, asked.version)
            for each in CHANNELS
        }
        cores, threads = here.hardware.cores, here.hardware.threads_per_core
        work, delay = (start(told[each], each, cores, threads) for each in CHANNELS)
        return _Answer(asked, told["work"], work, delay, asking.now_unix_s)

    def _start(self, model: LraModel, lra: str, answer: _Answer) -> str:
        told, work = answer.told, answer.work
        began = work is not None and model.begin_told(work, answer.delay)
        if not told.sources and not told.left_out:
            return ""
        words = self._words(told) if began else ""
        points = 0 if work is None else len(work.y)
        self._keep(ModelOrigin(lra, words, "", answer.at_unix_s, points, *origin_hosts(told)))
        return words

    def _words(self, told: Pooled) -> str:
        others = sum(each.contributor != self._name for each in told.sources)
        words = f"began from {others} other host{'' if others == 1 else 's'}"
        return words if others == len(told.sources) else f"{words} and a replica on this one"

    # -- origins --------------------------------------------------------------------------------------------------

    def origin(self, lra: str, model: LraModel, words: str) -> ModelOrigin:
        """The origin of an LRA's model. ``words``: the origin that the model's summary shows."""
        found = self._kept(lra)
        if found is None:
            return ModelOrigin(lra, words)
        if not found.origin:
            return replace(found, origin=words, outcome=TOO_LITTLE)
        if words != found.origin:
            found = replace(found, origin=f"{words}; at first it {found.origin}")
        trial = model.trials.get("work")
        if trial is None:
            outcome = KEPT if is_told(model.work_correction) else LEFT
        else:
            outcome = ON_TRIAL if trial else BEHIND
        return replace(found, outcome=outcome)

    def forget(self, lra: str) -> None:
        """Forget the origin of a model that was reset, imported or removed."""
        self._waiting.pop(lra, None)
        with contextlib.suppress(OSError):
            self._path(lra).unlink()
        shutil.rmtree(self._path(lra, "").parent, ignore_errors=True)

    def change_version(self, lra: str, old: str, new: str, resumed: bool) -> None:
        """Note that another version of the application is running.

        ``resumed``: the version continues with its own earlier model, and therefore with that model's origin;
        otherwise it starts from the old version's model. ``old`` is empty if the application returned after
        its removal.
        """
        present = self._kept(lra)
        if present is not None and old:
            self._keep(present, old)
        if not resumed:
            return
        self._waiting.pop(lra, None)
        earlier = self._kept(lra, new)
        if earlier is not None:
            self._keep(earlier)
        else:
            with contextlib.suppress(OSError):
                self._path(lra).unlink()

    def _keep(self, origin: ModelOrigin, version: str | None = None) -> None:
        path = self._path(origin.lra, version)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # No fsync: the loop must not wait for the disk, and a lost origin only costs an explanation.
            replace_text(path, json.dumps(encode(origin)), 0o600, synced=False)
        except (OSError, PerphError) as exc:
            log.warning("the origin of the model of %s cannot be stored: %s", origin.lra, exc)

    def _kept(self, lra: str, version: str | None = None) -> ModelOrigin | None:
        try:
            return decode(ModelOrigin, json.loads(self._path(lra, version).read_text(encoding="utf-8")))
        except (OSError, ValueError, PerphError):
            return None

    def _path(self, lra: str, version: str | None = None) -> Path:
        """The file with the origin of the model in use, or of the model kept for a version."""
        if version is None:
            return self._origins / f"{lra}.json"
        return self._origins / "versions" / lra / f"{hashlib.sha256(version.encode()).hexdigest()[:32]}.json"

    # -- contributing ---------------------------------------------------------------------------------------------

    def contribute_scores(self, present: Mapping[str, str]) -> None:
        """Replace this host's document if the forecast worker has written new scores, even if no model was saved."""
        forecasts = self._membership.forecasts
        if self._membership.contribute and forecasts is not None and written_at(forecasts) != self._scores_s:
            self.contribute((), present)

    def contribute(self, files: Iterable[ModelFile], present: Mapping[str, str]) -> None:
        """Replace this host's document by one with the present knowledge of these models.

        The method never waits for the folder, which may be on a file system that hangs. ``present``: the LRAs of
        this host, each with its application; statements about others are dropped after ``replicas.ABSENT_S``.
        """
        if not self._membership.contribute:
            return
        with self._lock:
            self._unsaid.update({file.provenance.lra: file for file in files})
            self._present, self._is_asked = dict(present), True
            if self._is_contributing:
                return
            self._is_contributing = True
        if not self._runs(self._contribute_all):
            self._is_contributing = False

    def _runs(self, work: Callable[[], None]) -> bool:
        """Run ``work``, or start it in a thread; returns False if no thread can start."""
        if self._inline:
            work()
            return True
        try:
            Thread(target=work, name="perphd-federated", daemon=True).start()
        except RuntimeError as exc:  # no more threads
            log.warning("the exchange of models is delayed, because no thread can be started: %s", exc)
            return False
        return True

    def _contribute_all(self) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self._is_contributing = False
                    return
                files, present, self._unsaid, self._is_asked = self._unsaid, self._present, {}, False
                back, self._taken_back = self._taken_back, set()
            try:
                self._contribute(files.values(), present, back)
                self._unwritten = ""
            except PerphError as exc:
                self._unwritten = f"this host's contribution to other hosts' models is not written: {exc}"
            except Exception as exc:  # this host works without the exchange
                log.exception("%s: this host's contribution cannot be written", self._folder.folder)
                self._unwritten = f"this host's contribution to other hosts' models is not written: {exc!r}"

    def _contribute(
        self, files: Iterable[ModelFile], present: Mapping[str, str], taken_back: Collection[tuple[str, str]]
    ) -> None:
        if self._said is None:
            self._resume()
        here, now, before = self._membership, self._wall_clock(), self._said or {}
        self._here_s = last_here(self._here_s, before, present.values(), now)
        said = self._said = of_present(before, present, taken_back, self._here_s)
        for file in files:
            lra, found = file.provenance.lra, contributed(file, here.hardware.threads_per_core)
            by = said.setdefault(file.provenance.known_as, {})
            if found:
                by[lra] = found
            else:
                by.pop(lra, None)  # it was reset: the statements of its earlier model are withdrawn
        corrections: list[Statistic] = []
        for _, by in sorted(said.items()):
            now_said = spoken(each for lra, kept in sorted(by.items()) if lra != EARLIER for each in kept)
            known = {each.topic for each in now_said}
            by[EARLIER] = tuple(each for each in by.get(EARLIER, ()) if each.topic not in known)
            corrections += [*now_said, *by[EARLIER]]
        self._scores_s = None if here.forecasts is None else written_at(here.forecasts)
        statistics = fitting([*corrections, *(read_scores(here.forecasts) if here.forecasts else ())])
        self._generation = min(max(self._generation + 1, int(now)), EVERY_GENERATION)
        self._folder.write(Contribution(self._name, self._generation, now, here.hardware, statistics))

    def _resume(self) -> None:
        """Continue from the document that an earlier process wrote."""
        own, self._said = self._folder.own(self._name), {}
        if own is None or own.hardware != self._membership.hardware:
            return
        self._generation = own.generation
        for each in own.statistics:
            if each.topic.kind == KIND:
                by = self._said.setdefault(each.topic.application, {})
                by[EARLIER] = (*by.get(EARLIER, ()), each)


def _asked(lra: str, met: _Met, version: str) -> _Asked:
    return _Asked(met.counted_by, version, met.application, met.application != lra and not met.again)


def open_federated(
    config: Config,
    fs: KernelFs,
    topology: Topology,
    records: Records,
    wall_clock: Callable[[], float],
    inline: bool = False,
) -> Federated:
    """Open the exchange as configured; requires a folder in ``[federated]``."""
    keys = config.federated
    state = Path(config.daemon.state_dir)
    here = Membership(
        this_host(),
        hardware_of(fs, topology),
        keys.expire_days * 86400.0,
        keys.contribute,
        state / "forecast",
    )
    origins = state / "models" / "origins"
    return Federated(ContributionFolder(keys.folder), origins, here, records, wall_clock, inline)


def forecast_reader(config: Config, fs: KernelFs, topology: Topology) -> str:
    """The worker's argument: this host, for which the worker reads contributions, and their folder; as text."""
    keys = config.federated
    folder, name = str(Path(keys.folder).absolute()), contributor_name(this_host())
    return reader_text(Reader(folder, name, hardware_of(fs, topology), keys.expire_days * 86400.0))


def hardware_of(fs: KernelFs, topology: Topology) -> Hardware:
    """The processors of this host that workloads may use."""
    cores = max(len(topology.usable_cores), 1)
    return Hardware(
        processor_name(fs)[:128],
        cores,
        min(max(len(topology.usable) / cores, 1.0), 8.0),
        sum(domain.size_bytes for domain in topology.l3_domains),
    )
