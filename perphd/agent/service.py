"""The daemon's lifecycle: start, tick on time, serve the socket, handle signals, stop and restore."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, cast

from perphd.agent.agent import Agent
from perphd.agent.composition import build_agent
from perphd.agent.triggers import EarlyTicks
from perphd.agent.upkeep import Complaints, collecting_later, give_back_memory, spare_the_start
from perphd.config.file import Config, load, reloaded
from perphd.config.host_check import check_against_host
from perphd.config.workloads import WorkloadNames
from perphd.domain.control import Actor
from perphd.domain.errors import PerphError
from perphd.domain.workload import Mode
from perphd.host.cgroup import discover
from perphd.host.fs import RealFs
from perphd.host.systemd_fs import is_running_kernel
from perphd.host.systemd_jobs import is_restarting
from perphd.isolation.instances import orphaned_journals
from perphd.isolation.restore import restore
from perphd.isolation.restore_report import RestoreReport

log = logging.getLogger("perphd")

ALIVE_STEP_S = 5.0
"""Longest time in seconds between two keep-alive signals to the watchdog, regardless of the period."""
SILENCE_S = 30.0
"""Watchdog signals stop after three periods plus this time in seconds without a finished tick."""
LEISURE = 3.0
"""The tick interval is at least this multiple of a tick's duration, unless the configured period is shorter."""
START_STEP_S = 60.0
"""Seconds that each step of the start (reading, restoring, opening the socket) may take before systemd gives up."""
TRIM_EVERY_S = 60.0
"""Seconds between two returns of unused memory to the kernel."""


class Server(Protocol):
    """A server for the agent while it runs."""

    async def start(self) -> None:
        """Start to serve; raises PerphError if the address is unavailable."""

    async def stop(self) -> None:
        """Stop serving."""


Reload = Callable[[Actor], Awaitable[Config]]
ServerFactory = Callable[[Agent, Reload], Server]


def log_leftovers(report: RestoreReport) -> None:
    """Log what a previous instance left behind, and what happens to values that other programs set meanwhile."""
    if report.restored or report.failed or report.foreign:
        log.warning("a previous instance exited without restoring its changes: %s", report)
    for file in report.foreign:
        log.warning(
            "%s: left as it is at the start only: perphd may set it again, and then restores the original %r",
            file.path,
            file.original,
        )


class Service:
    """Runs one agent, and the server made by ``serve``, until it is stopped."""

    def __init__(self, config_path: Path, config: Config, serve: ServerFactory) -> None:
        self._path, self._config, self._serve = config_path, config, serve
        self._stop = asyncio.Event()
        self._advance: Callable[[float], None] | None = None
        self._simulated_names: frozenset[str] = frozenset()
        self._notifier = Notifier()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            PerphError: the daemon cannot start (another one runs, the configuration does not fit this host ...).
        """
        self._notifier.starting("restoring and probing")
        agent = self._simulated() if self._config.host.kind == "simulated" else self._real()
        self._notifier.starting("opening the socket")
        server = self._serve(agent, lambda by: self._reload(agent, by))
        testing: asyncio.Task[None] | None = None
        try:
            self._watch_signals(agent)  # before another process can see that the daemon runs, and stop it
            await server.start()
            asyncio.get_running_loop().set_exception_handler(Complaints(time.monotonic))
            self._notifier.ready(f"{self._config.daemon.mode}, {self._config.count} workloads")
            # The first tick does not wait for this test.
            testing = asyncio.create_task(asyncio.to_thread(agent.test_detector))
            spare_the_start()
            log.info("ready: mode %s, policy %s", self._config.daemon.mode, self._config.daemon.policy)
            await self._loop(agent)
        finally:
            self._notifier.stopping()
            if testing is not None:
                testing.cancel()
            try:
                await server.stop()
            finally:
                done = await agent.stop(restore=not self._keeps())
                log.info("stopped; %s", done if done is not None else "settings in force are kept")
            if done is not None and done.failed:  # a nonzero status makes the unit's ExecStopPost= retry
                raise PerphError(f"not everything was restored: {done}; run perphd restore to try again")

    def _keeps(self) -> bool:
        """True if the settings in force must stay after this process has ended."""
        daemon = self._config.daemon
        if daemon.on_stop == daemon.on_restart:
            return daemon.on_stop == "keep"
        return (daemon.on_restart if is_restarting(RealFs()) else daemon.on_stop) == "keep"

    def _simulated(self) -> Agent:
        # imported here so that a real daemon does not load the simulator
        from perphd.agent.simulated import (
            DEFAULT_WORKLOADS,
            build_simulated,
        )

        agent, self._advance = build_simulated(self._config)
        self._simulated_names = frozenset(spec.name for spec in self._config.workloads or DEFAULT_WORKLOADS)
        return agent

    def _for_host(self, config: Config) -> Config:
        """Prepare a configuration that was read again.

        On a simulated host, its indicators are added. Otherwise, warnings of the check against the host are logged.
        """
        if self._config.host.kind == "simulated":
            from perphd.agent.simulated import with_indicators

            return with_indicators(config, self._simulated_names)
        fs = RealFs(config.host.root)
        for warning in check_against_host(config, fs, discover(fs)):
            log.warning("%s", warning)
        return config

    def _real(self) -> Agent:
        fs = RealFs(self._config.host.root)
        for warning in check_against_host(self._config, fs, discover(fs)):
            log.warning("%s", warning)
        # Changes left behind by a killed daemon are restored before the first sample. Settings kept on
        # purpose stay for workloads that are still enforced.
        daemon = self._config.daemon
        enforced = WorkloadNames(
            spec
            for spec in (*self._config.workloads, *self._config.matches)
            if (spec.mode or daemon.mode) is Mode.ENFORCE
        )
        through_systemd = self._config.isolation.units == "systemd"
        report = restore(fs, Path(daemon.state_dir), but=enforced, units=through_systemd)
        log_leftovers(report)
        self._restore_orphaned(fs)
        return build_agent(self._config, clock=time.monotonic)

    def _restore_orphaned(self, fs: RealFs) -> None:
        """Restore the changes recorded in another state directory, which no other instance would find later."""
        if not is_running_kernel(fs):
            return
        daemon = self._config.daemon
        enforced = [
            spec.cgroup for spec in self._config.workloads if (spec.mode or daemon.mode) is Mode.ENFORCE
        ]
        for state_dir in orphaned_journals(daemon.state_dir, str(self._path), discover(fs), enforced):
            try:
                report = restore(fs, Path(state_dir))
            except PerphError as exc:  # that instance is alive and keeps its groups
                log.warning("%s", exc)
            else:
                log.warning(
                    "an instance with state directory %s had not restored its changes: %s", state_dir, report
                )

    async def _loop(self, agent: Agent) -> None:
        period_s = self._config.daemon.period_s
        began_s = trimmed_s = due_s = ended_s = time.monotonic()
        while not self._stop.is_set():
            round_s = now_s = time.monotonic()
            usual_s = wanted_s = self._config.daemon.period_s
            try:
                if self._advance is not None:
                    self._advance(now_s - began_s)
                with collecting_later():
                    await agent.tick(now_s, period_s)
                ended_s, wanted_s = time.monotonic(), agent.pace_s
            except PerphError as exc:
                # Fail static: settings in force stay, and the next tick tries again.
                log.error("tick failed: %s", exc)
            except Exception:
                log.exception("tick failed")
            if now_s - trimmed_s >= TRIM_EVERY_S:
                trimmed_s = now_s
                give_back_memory()
            # A slow tick (for example with a slow application) limits the rate of ticks by its duration.
            took_s = time.monotonic() - round_s
            period_s = min(max(wanted_s, LEISURE * took_s), usual_s)
            due_s += period_s
            late_s = time.monotonic() - due_s
            if late_s > 0:
                missed = int(late_s // period_s) + 1
                agent.missed(missed)
                due_s += missed * period_s
            alive_until_s = ended_s + 3 * period_s + SILENCE_S
            early_ticks = agent.early_ticks if self._advance is None else None
            while await self._wait(due_s, alive_until_s, early_ticks):
                # An early tick is one extra tick; the schedule stays. There is at most one per period, so one
                # of its two parts is at least half a period long, and perphd judges it and learns from it.
                ended_s = await self._look(agent, due_s, ended_s, period_s)
                early_ticks = None
                # The tick may have found a reason for a shorter period.
                period_s = min(period_s, max(agent.pace_s, LEISURE * took_s))
                due_s = min(due_s, ended_s + period_s)

    async def _look(self, agent: Agent, due_s: float, ended_s: float, period_s: float) -> float:
        """Run an early tick unless the next regular one is near. Returns the end time of the last successful tick."""
        early_ticks = agent.early_ticks
        if early_ticks is None:
            return ended_s
        now_s = time.monotonic()
        pause_s = early_ticks.look_in_s(now_s - ended_s, due_s - now_s)
        if pause_s is None:
            return ended_s  # the next tick answers the request
        await self._rest(pause_s, None)
        if self._stop.is_set():
            return ended_s
        try:
            with collecting_later():
                await agent.tick(time.monotonic(), period_s)
        except PerphError as exc:
            log.error("extra tick failed: %s", exc)
        except Exception:
            log.exception("extra tick failed")
        else:
            early_ticks.extra_ticks += 1
            return time.monotonic()
        finally:
            early_ticks.take()
        return ended_s

    async def _wait(self, due_s: float, alive_until_s: float, early_ticks: EarlyTicks | None = None) -> bool:
        """Wait for the next tick or the stop; returns True if an early tick is requested first.

        Feeds the watchdog, but not beyond ``alive_until_s``.
        """
        while not self._stop.is_set():
            now_s = time.monotonic()
            if now_s < alive_until_s:
                self._notifier.alive()
            if await self._rest(min(max(0.0, due_s - now_s), ALIVE_STEP_S), early_ticks):
                return not self._stop.is_set()
            if time.monotonic() >= due_s:
                return False
        return False

    async def _rest(self, seconds: float, early_ticks: EarlyTicks | None) -> bool:
        """Sleep for this time, or until the stop, or (returning True) until an early tick is requested."""
        stop = asyncio.ensure_future(self._stop.wait())
        call = asyncio.ensure_future(early_ticks.requested()) if early_ticks is not None else None
        waits = {stop} if call is None else {stop, call}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return call is not None and call.done()
        finally:
            for wait in waits:
                wait.cancel()

    def _watch_signals(self, agent: Agent) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        tasks: set[asyncio.Task[None]] = set()

        def hang_up() -> None:
            task = loop.create_task(self._reload_quietly(agent))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        loop.add_signal_handler(signal.SIGHUP, hang_up)

    async def _reload_quietly(self, agent: Agent) -> None:
        try:
            await self._reload(agent)
        except PerphError as exc:
            log.error("configuration not reloaded: %s", exc)

    async def _reload(self, agent: Agent, by: Actor | None = None) -> Config:
        self._notifier.reloading()
        try:
            config = load(self._path)
            await agent.reload(self._for_host(config), by)
            self._config, waiting = reloaded(self._config, config)
            if waiting:
                log.warning("configuration reloaded; a restart is needed for %s", ", ".join(waiting))
        finally:
            self._notifier.ready("reloaded")
        return config


log = logging.getLogger("perphd")


class _Daemon(Protocol):
    def notify(self, status: str) -> bool: ...


class Notifier:
    """Notifies systemd of readiness, reloading, stopping, and that the loop is alive (WATCHDOG=1). Never raises."""

    def __init__(self) -> None:
        self._daemon: _Daemon | None = None
        self._failed = False
        if not os.environ.get("NOTIFY_SOCKET"):
            return
        try:
            daemon = importlib.import_module("systemd.daemon")
        except ImportError:
            log.error(
                "started by systemd, but the Python package systemd-python is missing: perphd cannot report readiness"
            )
            return
        self._daemon = cast(_Daemon, daemon)

    def starting(self, status: str) -> None:
        """Report that a step of the start begins: systemd waits ``START_STEP_S`` from now, whatever the
        earlier steps took.
        """
        self._tell(f"EXTEND_TIMEOUT_USEC={int(START_STEP_S * 1e6)}\nSTATUS={status}")

    def ready(self, status: str) -> None:
        """Report that the daemon is sampling and serving."""
        self._tell(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being reloaded."""
        self._tell("RELOADING=1")

    def stopping(self) -> None:
        """Report that the daemon is stopping."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """Report that the loop is alive."""
        self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        if self._daemon is None:
            return
        try:
            self._daemon.notify(text)
        except OSError as exc:
            if not self._failed:
                what = text.partition("\n")[0]
                log.error(
                    "cannot notify systemd of %s: %s; further failures are not logged, but retried", what, exc
                )
            self._failed = True
