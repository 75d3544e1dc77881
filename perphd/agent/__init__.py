"""Composition, the control loop and its lifecycle. The only package that owns tasks and the clock."""
