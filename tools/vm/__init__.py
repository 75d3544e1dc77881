"""Throw-away virtual machines with a real systemd, for the tests that need one. Debian's own packages only."""
