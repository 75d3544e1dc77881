"""Disposable virtual machines with a real systemd, for tests that need one. Uses only Debian's packages."""
