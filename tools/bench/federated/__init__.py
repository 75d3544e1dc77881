"""Hosts that learn from each other: samples that a first meeting needs, unlike hardware, and hosts that lie."""
