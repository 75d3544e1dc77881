"""Lifecycle of the LRAs' models: loaded when an LRA appears, saved periodically and at the end, queried, replaced.

Problems with files are shown by ``perphctl status`` and never stop the loop. Threads read and write files,
because disks may be slow.

Each version of an application has its own model. When another version starts to run, the model of the
previous one is kept on disk. The new version's model starts from it with reduced confidence, or continues its
own if the version ran here before. The same applies when the application itself disappears and returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from perphd import __version__
from perphd.agent.model_life import (
    Life,
    Versions,
    Written,
    counted_otherwise,
    longest_unseen,
    misfit,
    sli_of,
    start_files,
    unusable,
)
from perphd.agent.model_writer import FileReader, ModelWriter
from perphd.agent.rebuilds import Rebuilds
from perphd.agent.records import Records
from perphd.domain.belief import ModelOrigin, ModelSummary
from perphd.domain.errors import PerphError
from perphd.domain.event import Event, EventKind
from perphd.domain.reading import Unavailable
from perphd.domain.workload import Kind, WorkloadSpec
from perphd.predictor import LraModel, Registry
from perphd.predictor.files import ModelFiles
from perphd.predictor.persist import ModelFile, ModelFileError, Provenance, from_text, ranges_of, to_text
from perphd.predictor.profile.classes import WarmStart
from perphd.predictor.profile.warm import corrections

if TYPE_CHECKING:
    from perphd.agent.federated import Federated

log = logging.getLogger("perphd")

CLOCK_SLACK_S = 60.0
"""Seconds by which a file's time may lie in the future. Beyond that, the clock was set back."""
NEVER_SAVED = Unavailable("not saved yet")


def _own_name(workload: str) -> str:
    return workload


class Models:
    """All models of the host; see the module.

    Args:
        registry: the models themselves.
        files: the store of model files.
        records: receives problems.
        wall_clock: time of day, seconds since 1970.
        host: this host's name; ``cores``: its usable physical cores.
        rebuilds: rebuilds trees in a worker process; None: rebuild them in place, for virtual time.
        rebuild: whether trees are rebuilt at all.
        llc_ways: number of last-level cache ways that can be set here.
        versions: source of applications' versions; None: all versions count as one.
        federated: the exchange with other hosts; None: no exchange.
        in_thread: read and decode files in a thread; False: inline, for virtual time.
    """

    def __init__(
        self,
        registry: Registry,
        files: ModelFiles,
        records: Records,
        wall_clock: Callable[[], float],
        host: str,
        cores: int,
        rebuilds: Rebuilds | None = None,
        *,
        rebuild: bool = True,
        llc_ways: int = 0,
        versions: Versions | None = None,
        federated: Federated | None = None,
        in_thread: bool = True,
    ) -> None:
        self._registry, self._files, self._records = registry, files, records
        self._wall_clock, self._host, self._cores = wall_clock, host, cores
        self._rebuilds, self._rebuild = rebuilds, rebuild
        self._llc_ways, self._versions, self._federated = llc_ways, versions, federated
        self._lives: dict[str, Life] = {}
        self._due_s: float | None = None
        self._writer = ModelWriter()
        self._read = FileReader(in_thread)

    def model(self, lra: str) -> LraModel:
        """The LRA's model, created at first use."""
        return self._registry.model(lra)

    async def follow(
        self,
        specs: Iterable[WorkloadSpec],
        now_s: float,
        application: Callable[[str], str] = _own_name,
    ) -> None:
        """Load the models of new LRAs and continue rebuilds. A model that cannot be loaded starts from scratch.

        The caller holds the lock of rounds, because nothing may change while files are read. ``application``: the name
        by which other hosts know a workload.
        """
        if self._rebuild:
            if self._rebuilds is not None:
                self._rebuilds.step(now_s)
            else:
                self._registry.rebuild_here()
        for spec in specs:
            if spec.kind is not Kind.LRA:
                continue
            known_as = application(spec.name)
            if (known := self._lives.get(spec.name)) is not None:
                if known.known_as != known_as:
                    known.rename(known_as)
                    if self._federated is not None:
                        self._federated.rename(spec.name, known_as)
                continue
            life = Life(spec, "learned here", application="" if known_as == spec.name else known_as)
            found, begun = await self._read(start_files, self._files, spec)
            self._lives[spec.name] = life
            problems = list(found.problems)
            if found.file is not None:
                if odd := self._put(found.file, spec.name, now_s, life):
                    problems.append(odd)
                life.saved_unix_s = found.file.provenance.saved_at_unix_s
                life.saved_samples = found.file.state.samples
                life.version = found.file.provenance.app_version
            life.fresh = found.file is None
            self._begin(spec, life, found.file is None, begun, problems)
            if problems:
                self._records.problem(_key(spec.name), f"model of {spec.name}: {'; '.join(problems)}", now_s)
        await self._follow_versions(specs, now_s)
        if self._federated is not None:
            for lra, words in self._federated.step(self._registry, self._version, now_s).items():
                self._lives[lra].origin = words

    def _version(self, lra: str) -> str:
        return self._lives[lra].version

    async def _follow_versions(self, specs: Iterable[WorkloadSpec], now_s: float) -> None:
        if self._versions is None:
            return
        for spec, life in longest_unseen(specs, self._lives, now_s):
            if self._writer.is_busy:
                return  # the disk is slow: the next tick checks again
            life.looked_s = now_s
            version = self._versions.look(spec)
            if isinstance(version, Unavailable) or version == life.version:
                continue
            if life.version:
                await self._change_version(spec, life, version, now_s)
            elif life.fresh:
                await self._take_up(spec, life, version, now_s)
            life.fresh = False
            life.version = version  # the version of what was learned so far was unknown; assume this one

    async def _take_up(self, spec: WorkloadSpec, life: Life, version: str, now_s: float) -> None:
        """Continue a returned LRA with its version's own model, or start from the last model that ran here."""
        self._wait(now_s)
        fits = partial(misfit, spec)
        found = await self._read(self._files.load_version, spec.name, version, fits)
        problems = list(found.problems)
        if found.file is None:
            found = await self._read(self._files.load_newest_version, spec.name, fits)
            problems += found.problems
        file = found.file
        if file is not None and file.state.samples > self.model(spec.name).samples:
            self._put(file, spec.name, now_s, life)
            was = file.provenance.app_version
            if self._federated is not None:
                self._federated.change_version(spec.name, "", was, resumed=True)
            if was == version:
                life.origin = f"resumed, learned on {file.provenance.host}"
                said = f"{spec.name} is back with version {version}: its model is resumed"
            else:
                self.model(spec.name).doubt()
                life.origin = f"started from version {was}"
                said = f"{spec.name} is back with version {version}: its model starts from that of {was}"
            self._records.event(Event(now_s, EventKind.WORKLOAD, said, spec.name))
        odd = f"model of {spec.name}: {'; '.join(problems)}" if problems else None
        self._records.problem(f"version:{spec.name}", odd, now_s)

    async def _change_version(self, spec: WorkloadSpec, life: Life, version: str, now_s: float) -> None:
        """Keep the model of the previous version, and resume the new version's own model if there is one."""
        earlier = await self._read(self._files.load_version, spec.name, version, partial(misfit, spec))
        self._wait(now_s)
        old = self._file(spec, now_s)
        if earlier.file is not None:
            self._put(earlier.file, spec.name, now_s, life)
            said = f"version {version} runs again: its own model is resumed"
            life.origin = f"resumed, learned on {earlier.file.provenance.host}"
        else:
            self.model(spec.name).doubt()
            said = f"version {version} instead of {life.version}: its model starts from that version's"
            life.origin = f"started from version {life.version}"
        if self._federated is not None:
            self._federated.change_version(spec.name, life.version, version, earlier.file is not None)
        self._writer.start(self._keep, old)
        life.saved_samples = -1  # must be saved, however much it has learned
        self._due_s = now_s
        self._records.event(Event(now_s, EventKind.WORKLOAD, said, spec.name))
        odd = f"model of {spec.name}: {'; '.join(earlier.problems)}" if earlier.problems else None
        self._records.problem(f"version:{spec.name}", odd, now_s)

    def _begin(
        self, spec: WorkloadSpec, life: Life, fresh: bool, found: WarmStart, problems: list[str]
    ) -> None:
        """Start the model of an LRA from its profile, or from the prior of the class that it names.

        A loaded model is kept; if it has only cells, its stages start from the same prior.
        """
        model = self._registry.model(spec.name)
        if fresh and self._federated is not None:
            self._federated.meet(spec.name, sli_of(spec), life.known_as)
        if not fresh and model.learner != "residual":
            return
        problems += found.problems
        if found.profile is None:
            return
        model.begin(*corrections(found.profile, self._cores, self._llc_ways))
        if fresh:
            life.origin = f"began from {found.source}"

    def save_when_due(self, specs: Iterable[WorkloadSpec], now_s: float, every_s: float) -> None:
        """Start to save changed models if the last save is ``every_s`` ago (0: never)."""
        self._collect(now_s)
        if self._due_s is None:
            self._due_s = now_s + every_s
        if every_s <= 0 or now_s < self._due_s or self._writer.has_result:
            return
        self._due_s = now_s + every_s
        files = self._changed(specs, now_s)
        if not files:
            if self._federated is not None:
                self._federated.contribute_scores(self._present())
            return
        self._writer.start(self._write, files)

    def close(self, specs: Iterable[WorkloadSpec], now_s: float, save: bool) -> None:
        """Close; save changes first unless ``save`` is False."""
        if self._rebuilds is not None:
            self._rebuilds.close()
        self._wait(now_s)
        if save:
            self._report(self._write(self._changed(specs, now_s)), now_s)
        self._writer.close()

    def summary(self, spec: WorkloadSpec) -> ModelSummary:
        """A summary of the LRA's model."""
        life = self._life(spec)
        model = self.model(spec.name)
        return ModelSummary(
            lra=spec.name,
            samples=model.samples,
            cells=model.cells,
            closed=model.is_closed,
            origin=life.origin,
            saved_ago_s=NEVER_SAVED
            if life.saved_unix_s is None
            else max(0.0, self._wall_clock() - life.saved_unix_s),
            version=life.version,
            earlier_versions=self._files.kept_versions(spec.name, life.version),
        )

    def origin(self, spec: WorkloadSpec, known_as: str) -> ModelOrigin:
        """The origin of the workload's model. ``known_as``: the name by which other hosts know the workload."""
        application = "" if known_as == spec.name else known_as
        if spec.kind is not Kind.LRA:
            return ModelOrigin(spec.name, "batch has no model", application=application)
        words = self._life(spec).origin
        if self._federated is None:
            return ModelOrigin(spec.name, words, application=application)
        found = self._federated.origin(spec.name, self.model(spec.name), words)
        return replace(found, application=application)

    def export(self, spec: WorkloadSpec, now_s: float) -> str:
        """The model as the text of a file.

        Raises:
            ModelFileError: it contains a number that no file may contain.
        """
        return to_text(self._file(spec, now_s))

    async def take(self, spec: WorkloadSpec, text: bytes, now_s: float, rename: bool) -> tuple[str, ...]:
        """Replace the LRA's model by the model in ``text``; returns warnings for the operator.

        The caller holds the lock of rounds.

        Args:
            spec: the LRA.
            text: the text of a model file.
            now_s: the time.
            rename: accept a file of an LRA with another name.

        Raises:
            ModelFileError: the text is refused; nothing has changed.
        """
        file = await self._read(from_text, text)
        self._wait(now_s)
        source = file.provenance
        if source.lra != spec.name and not rename:
            raise ModelFileError(
                f"it belongs to the LRA {source.lra!r}, not to {spec.name!r}; --rename accepts it"
            )
        if reason := counted_otherwise(file, spec) or unusable(file):
            raise ModelFileError(reason)
        warnings = []
        if source.host != self._host:
            warnings.append(
                f"it was learned on {source.host}: until {spec.name} has been seen undisturbed here, its targets are "
                "those of that host"
            )
        if source.cores != self._cores:
            warnings.append(f"it was learned on {source.cores} cores; this host has {self._cores}")
        life = self._lives.setdefault(spec.name, self._life(spec))
        if odd := self._put(file, spec.name, now_s, life):
            warnings.append(odd)
        self._forget_start(spec.name)
        life.origin = f"imported, learned on {source.host}"
        life.saved_samples = -1  # must be saved, however much it has learned
        self._due_s = now_s
        return tuple(warnings)

    def reset(self, spec: WorkloadSpec, now_s: float) -> None:
        """Discard an LRA's model; its files are moved aside.

        Raises:
            KernelError: its files could not be moved; nothing has changed.
        """
        self._wait(now_s)
        self._files.put_aside(spec.name)
        self._forget_start(spec.name)
        self._registry.forget(spec.name)
        was = self._life(spec)
        life = Life(spec, "learned here", version=was.version, application=was.application)
        self._lives[spec.name] = life
        if self._federated is not None:
            self._federated.meet(spec.name, sli_of(spec), life.known_as, again=True)
            self._federated.contribute((), self._present())  # now, because a restart would forget this
        self._records.problem(_key(spec.name), None, now_s)

    def forget(self, lra: str, now_s: float) -> None:
        """Forget the model of a removed workload; its files are moved aside.

        The model of the running version is kept with those of earlier versions, in case the workload returns.
        """
        life, file = self._lives.get(lra), None
        if life is not None and life.version and self.model(lra).samples:
            file = self._file(life.spec, now_s)
        self._drop(lra, now_s, with_versions=False)
        if file is not None:
            self._writer.start(partial(self._keep_gone, tuple(self._lives)), file)

    def keep_if_counted_alike(self, old: WorkloadSpec, new: WorkloadSpec, now_s: float) -> None:
        """Restart the model of an LRA if another kind of SLI now counts its work."""
        if old.kind is Kind.LRA and sli_of(old) != sli_of(new):
            self._drop(old.name, now_s, with_versions=True)

    def _drop(self, lra: str, now_s: float, with_versions: bool) -> None:
        self._wait(now_s)
        self._forget_start(lra)
        self._registry.forget(lra)
        if self._versions is not None:
            self._versions.forget(lra)
        self._records.problem(f"version:{lra}", None, now_s)
        problem = None
        if self._lives.pop(lra, None) is not None:
            try:
                self._files.put_aside(lra, with_versions)
            except PerphError as exc:
                problem = f"model of {lra}: {exc}"
        self._records.left_behind(_key(lra), problem, now_s)

    def _forget_start(self, lra: str) -> None:
        if self._federated is not None:
            self._federated.forget(lra)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _life(self, spec: WorkloadSpec) -> Life:
        """The ``Life`` of an LRA's model. A new one is not stored, because the model's file is not loaded yet."""
        return self._lives.get(spec.name) or Life(spec, "learned here")

    def _present(self) -> dict[str, str]:
        return {lra: life.known_as for lra, life in tuple(self._lives.items())}

    def _put(self, file: ModelFile, lra: str, now_s: float, life: Life) -> str:
        """Make the file's model the LRA's model. Returns a remark if the file's time is implausible."""
        elapsed_s = self._wall_clock() - file.provenance.saved_at_unix_s
        kind = self._registry
        model = LraModel.from_state(file.state, now_s, elapsed_s, kind.learner, kind.gate_mape)
        kind.put(lra, model)
        life.origin = f"loaded, learned on {file.provenance.host}"
        if elapsed_s >= -CLOCK_SLACK_S:
            return ""
        return (
            f"it was saved {-elapsed_s:.0f} s in the future: the clock went back; assuming it was saved now"
        )

    def _file(self, spec: WorkloadSpec, now_s: float) -> ModelFile:
        state = self.model(spec.name).to_state(now_s)
        source = Provenance(
            lra=spec.name,
            cgroup=spec.cgroup,
            sli_source=sli_of(spec),
            host=self._host,
            cores=self._cores,
            perphd_version=__version__,
            saved_at_unix_s=self._wall_clock(),
            app_version=self._life(spec).version,
            application=self._life(spec).application,
        )
        return ModelFile(source, ranges_of(state), state)

    def _changed(self, specs: Iterable[WorkloadSpec], now_s: float) -> tuple[ModelFile, ...]:
        found = []
        for spec in specs:
            if spec.kind is Kind.LRA and self.model(spec.name).samples != self._life(spec).saved_samples:
                found.append(self._file(spec, now_s))
        return tuple(found)

    def _write(self, files: Iterable[ModelFile]) -> Sequence[Written]:
        """Write files. Runs in the writer's thread, or at the end."""
        done = []
        for file in files:
            lra, problem = file.provenance.lra, None
            try:
                self._files.save(lra, to_text(file))
            except PerphError as exc:
                problem = f"model of {lra} could not be saved: {exc}"
            except Exception as exc:  # the loop and the other models must continue
                log.exception("model of %s could not be saved", lra)
                problem = f"model of {lra} could not be saved: {exc!r}"
            done.append(Written(file, problem))
        if self._federated is not None:
            self._federated.contribute((each.file for each in done), self._present())
        return done

    def _keep(self, file: ModelFile) -> Sequence[Written]:
        """Keep the model of a version that no longer runs. Runs in the writer's thread."""
        lra, problem = file.provenance.lra, None
        try:
            self._files.keep_version(lra, file.provenance.app_version, to_text(file))
        except PerphError as exc:
            problem = f"model of {lra}: the previous version's model could not be kept: {exc}"
        return (Written(file, problem),)

    def _keep_gone(self, present: tuple[str, ...], file: ModelFile) -> Sequence[Written]:
        """Keep the model of a removed LRA. ``present``: names of the other LRAs. Runs in the writer's thread."""
        for done in self._keep(file):
            if done.problem is not None:
                log.warning("%s", done.problem)
        self._files.drop_gone(present, self._wall_clock())
        return ()

    async def written(self) -> None:
        """Wait for the disk; ``take``, ``reset`` and ``forget`` would otherwise block the event loop."""
        await self._writer.idle()

    def _collect(self, now_s: float) -> None:
        if not self._writer.is_busy:
            self._wait(now_s)

    def _wait(self, now_s: float) -> None:
        self._report(self._writer.result(), now_s)

    def _report(self, done: Sequence[Written], now_s: float) -> None:
        for written in done:
            source = written.file.provenance
            self._records.problem(_key(source.lra), written.problem, now_s)
            life = self._lives.get(source.lra)
            if life is not None and written.problem is None and source.app_version == life.version:
                life.saved_unix_s = source.saved_at_unix_s
                life.saved_samples = written.file.state.samples


def _key(lra: str) -> str:
    return f"model:{lra}"
