"""Accuracy, adaptation and uncertainty of the Res-Perf learners: streams, metrics, report."""
