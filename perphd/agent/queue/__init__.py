"""The batch queue in the daemon: stored jobs, running jobs, and plans."""
