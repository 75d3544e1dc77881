"""Shipped profiles of application classes, from which an LRA of a declared class starts if it was never explored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perphd.domain.errors import ConfigError, PerphError
from perphd.predictor.profile.file import FileError, Profile, from_text

FOLDERS: Final = (
    Path(__file__).parents[3] / "profiles" / "priors",
    Path("/usr/share/perphd/profiles/priors"),
)
"""Folders of the shipped profiles: first that of a checkout, then that of the installed package."""
CLASSES: Final = ("database", "streaming", "web", "cache")


def class_prior(name: str) -> Profile:
    """The profile of a class.

    Raises:
        ConfigError: there is no such class, or its file is missing.
        FileError: its file is damaged.
    """
    if name not in CLASSES:
        raise ConfigError("", "class", f"no class {name!r}", ", ".join(CLASSES))
    for folder in FOLDERS:
        path = folder / f"{name}.json"
        try:
            return from_text(path.read_bytes())
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise FileError(f"{path}: cannot be read: {exc.strerror}") from exc
        except FileError as exc:
            raise FileError(f"{path}: {exc}") from exc
    raise ConfigError(
        str(FOLDERS[0]), "class", f"the profile of the class {name!r} is not installed; reinstall perphd"
    )


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """Start of an LRA's model: a profile (None: physics alone), its description in words, and the problems found."""

    profile: Profile | None = None
    source: str = ""
    problems: tuple[str, ...] = ()


def beginning(state_dir: Path, lra: str, app_class: str) -> WarmStart:
    """The profile that ``perphd profile`` saved for this LRA, else that of its class. Never raises."""
    path = state_dir / "profiles" / f"{lra}.json"
    problems: list[str] = []
    try:
        found = from_text(path.read_bytes())
        if found.is_signed_off:
            return WarmStart(found, f"its profile of {', '.join(found.origin.hosts)}")
        problems.append(f"{path}: not used as a warm start: {found.metrics.refusal}")
    except FileNotFoundError:
        pass
    except OSError as exc:
        problems.append(f"{path}: cannot be read: {exc.strerror}")
    except FileError as exc:
        problems.append(f"{path}: not used: {exc}")
    if app_class == "none":
        return WarmStart(problems=tuple(problems))
    try:
        return WarmStart(class_prior(app_class), f"the class {app_class}", tuple(problems))
    except PerphError as exc:
        return WarmStart(problems=(*problems, f"class {app_class}: {exc}"))
