"""The wiring: configuration, the loop, lifecycle. The only place that owns tasks and the clock."""
