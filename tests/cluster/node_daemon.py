"""The daemon itself on this host, for tests in which a cluster scheduler's containers are its workloads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perphd.control.client import Client
from perphd.domain.errors import PerphError

PATIENCE_S = 60.0
_PROGRAM = [sys.executable, "-c", "from perphd.commands.daemon import main; main()"]
_CONFIG = """
[daemon]
mode = "enforce"
period_s = 0.2
state_dir = "{folder}"
socket = "{folder}/perphd.sock"
read_group = "root"
admin_group = "root"
[tuning.daemon]
policy = "{policy}"
[tuning.policy]
confirm_ticks = 1
settle_s = 0.0
evaluate_ticks = 1
shrink_after_s = 1.0
probe_after_s = 1.0
regret_s = 1.0
"""


def wait(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first answer that is true."""
    ends = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < ends, what
        time.sleep(0.2)
    return answer


class NodeDaemon:
    """perphd in a folder of its own, which decides fast.

    Batch that runs before an LRA was ever seen undisturbed is demoted at once.
    """

    def __init__(self, folder: Path, workloads: str, policy: str = "perph") -> None:
        folder.mkdir()
        self.folder, self.socket = folder, folder / "perphd.sock"
        self._config = folder / "perphd.toml"
        self._config.write_text(_CONFIG.format(folder=folder, policy=policy) + workloads)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for its first answer."""
        with (self.folder / "out").open("ab") as log:
            process = subprocess.Popen([*_PROGRAM, "run", "--config", str(self._config)], stderr=log)
        self._process = process

        def answers() -> bool:
            assert process.poll() is None, f"the daemon ended: {self.folder}/out"
            return self.client() is not None

        wait(answers, "the daemon does not answer")

    def client(self) -> Client | None:
        """A client, if the daemon answers."""
        client = Client(str(self.socket))
        try:
            client.get("status")
        except (PerphError, OSError):
            return None
        return client

    def stop(self) -> None:
        """Stop it in order: it restores what it has set."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0
            self._process = None

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process is not None:
            self.kill()
        subprocess.run(
            [*_PROGRAM, "restore", "--config", str(self._config)], capture_output=True, check=False
        )
