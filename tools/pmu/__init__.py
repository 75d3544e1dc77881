"""A small arm64 machine with a real performance monitoring unit, for `make test-pmu`."""
