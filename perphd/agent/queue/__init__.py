"""The batch queue in the daemon: what is on disk, what runs, and what is planned."""
