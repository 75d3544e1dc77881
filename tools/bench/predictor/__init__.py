"""How well the Res-Perf learners predict, follow and doubt: streams, metrics, report."""
