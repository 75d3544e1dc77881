"""The configuration: read strictly into frozen values, and the workloads that it declares found on the host."""
