"""Hosts that learn from each other: samples needed for a new application, unlike hardware, and lying hosts."""
