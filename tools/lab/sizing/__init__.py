"""Sizing on real control groups: the resource shaper beside random walks, and memory fits of real processes."""
