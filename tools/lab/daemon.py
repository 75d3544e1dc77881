"""perphd as an operator would start it: a configuration file, a process, and no prior knowledge."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path

from tools.lab import groups as g
from tools.lab.processes import Ledger
from tools.lab.records import Note

_ROOT = Path(__file__).resolve().parents[2]
_CONFIG = """\
[daemon]
mode = "enforce"
period_s = 1.0
state_dir = "{folder}/state"
socket = "{folder}/perphd.sock"
{policy}
[[lra]]
name = "{name}"
cgroup = "{lra}"
tolerance_pct = {tolerance_pct}

{sli}

[[batch]]
name = "batch"
cgroup = "{batch}"
"""
_STOP_S = 20.0


class Daemon:
    """One ``perphd run`` in enforce mode with an empty state folder.

    ``name``, ``sli``: of the application, the latter as in a configuration file; ``policy``: a policy of tools/bench
    instead of perphd's own, or empty. ``keep``: folder that receives its log, configuration and store after it has
    stopped.
    """

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        name: str,
        sli: str,
        groups: list[str],
        keep: Path,
        tolerance_pct: float,
        policy: str = "",
    ) -> None:
        self._ledger, self._keep = ledger, keep
        self._folder = folder / "perphd"
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "state").mkdir(parents=True)
        config = self._folder / "perphd.toml"
        config.write_text(
            _CONFIG.format(
                folder=self._folder, name=name, lra=g.LRA, batch=g.BATCH,
                # tools.lab.peer replaces the policy "none" by another one.
                policy='[tuning.daemon]\npolicy = "none"\n' if policy else "",
                sli=f"[lra.sli]\n{sli}" if sli else "",
                tolerance_pct=tolerance_pct,
            )
        )  # fmt: skip
        program = "from perphd.commands.daemon import main; main()"
        program = f"from tools.lab.peer import install; install({policy!r}); {program}" if policy else program
        with (self._folder / "log").open("wb") as log:
            self._process = ledger.start(
                [sys.executable, "-c", program, "run", "--config", str(config)],
                groups=groups,
                stdout=log,
                stderr=log,
                env={"PYTHONPATH": str(_ROOT)},
                end_signal="TERM",
            )
        self._started_s = time.monotonic()
        self._status: int | None = None

    def problem(self) -> str:
        """The reason why it does not run; empty if it runs or ended without error."""
        status = self._process.poll() if self._status is None else self._status
        if status is None or (self._status is not None and status == 0):
            return ""
        log = (self._folder / "log").read_text(errors="replace").strip()
        return f"perphd ended with status {status}; its log ends: {log[-500:]}"

    def stop(self) -> None:
        """Send SIGTERM, so that it restores its changes; then keep its files."""
        if self._status is None:
            early = self._process.poll()
            self._status = self._ledger.end(self._process, signal.SIGTERM, _STOP_S)
            if early is not None and early == 0:
                self._status = -1  # the daemon ended by itself
            self._keep.mkdir(parents=True, exist_ok=True)
            for name in ("log", "perphd.toml", "state/perphd.db"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(self._folder / name, self._keep)

    def notes(self, begin_s: float) -> tuple[Note, ...]:
        """Its decisions, verdicts and problems, read after its end; ``begin_s``: the antagonist's start."""
        path = self._folder / "state" / "perphd.db"
        if not path.exists():
            return ()
        with contextlib.closing(sqlite3.connect(path)) as store:
            found = [
                Note(at_s - begin_s, "decision", _decision(action, reason, record))
                for at_s, action, reason, record in store.execute(
                    "SELECT at_s, action, reason, record FROM decisions WHERE action != 'hold' ORDER BY at_s"
                )
            ]
            found += [
                Note(at_s - begin_s, "outcome", text)
                for at_s, text in store.execute("SELECT at_s, text FROM outcomes ORDER BY at_s")
            ]
            to_monotonic = time.monotonic() - time.time()
            found += [
                Note(wall_s + to_monotonic - begin_s, "problem", text.lstrip(": "))
                for wall_s, text in store.execute(
                    "SELECT wall_s, data FROM events WHERE kind = 'problem' ORDER BY wall_s"
                )
            ]
        return tuple(sorted(found, key=lambda note: note.at_s))


def _decision(action: str, reason: str, record: str) -> str:
    try:
        chosen = json.loads(record)["chosen"]["cpu"]
        what = (
            f"batch on {chosen['batch_cores']}/{chosen['total_cores']} cores, weight {chosen['batch_weight']}"
        )
        what += ", exclusive" if chosen["exclusive"] else ""
    except (ValueError, KeyError, TypeError):
        return f"{action}: {reason}"
    return f"{action} to {what}: {reason}"
