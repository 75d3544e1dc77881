"""Files of commands that work without the daemon: its state directory, input and output files."""

from __future__ import annotations

from pathlib import Path

from perphd.commands.base import Out
from perphd.control.client import NotPermitted, Refused, Unreachable
from perphd.domain.errors import ConfigError, PerphError


def state_dir(out: Out) -> Path:
    """The daemon's state directory; without a daemon, the configured one.

    Raises:
        PerphError: no daemon answers, and the configuration cannot be read.
    """
    from perphd.config.file import load

    try:
        return Path(out.client.get("config")["daemon"]["state_dir"])
    except (Unreachable, Refused):
        pass
    try:
        return Path(load(runtime=False).daemon.state_dir)
    except ConfigError as exc:
        raise PerphError(
            f"no daemon answers, and the configured state directory cannot be determined: {exc}"
        ) from exc


def read_lines(path: str) -> list[str]:
    """The lines of a text file.

    Raises:
        PerphError: it cannot be read.
        NotPermitted: this user may not read it.
    """
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except PermissionError as exc:
        raise NotPermitted(f"{path}: this user may not read it") from exc
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise PerphError(f"{path}: cannot be read: {reason}") from exc


def write_new(path: str, text: str) -> None:
    """Replace a file. Its folder must exist, because a missing folder is probably a typing error.

    Raises:
        PerphError: it cannot be written; the old one is unchanged.
    """
    from perphd.host.state_files import replace_text

    target = Path(path).absolute()
    if not target.parent.is_dir():
        raise PerphError(f"{path}: cannot be written: there is no folder {target.parent}")
    replace_text(target, text)
