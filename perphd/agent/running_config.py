"""The configuration in force."""

from __future__ import annotations

from perphd.config.file import Config, reloaded


class RunningConfig:
    """The configuration in force, which a reload replaces. Objects that must follow reloads hold this object."""

    def __init__(self, config: Config) -> None:
        self.now = config

    def reload(self, config: Config) -> tuple[str, ...]:
        """Put a configuration in force. Returns the keys for which a restart is needed."""
        self.now, waiting = reloaded(self.now, config)
        return waiting
