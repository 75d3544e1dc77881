"""Profiles of classes of applications, which ship: where an LRA begins that says what it is and was never explored."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from perphd.domain.errors import ConfigError
from perphd.predictor.profile.file import FileError, Profile, from_text

FOLDERS: Final = (
    Path(__file__).parents[3] / "profiles" / "priors",
    Path("/usr/share/perphd/profiles/priors"),
)
"""Where they are looked for: a checkout's, then the package's."""
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
    raise ConfigError(str(FOLDERS[0]), "class", f"the profile of the class {name!r} is not installed")
