"""The configuration, read strictly into frozen values, and discovery of the workloads that it declares."""
