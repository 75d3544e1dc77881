"""perphd: keeps long-running applications at their target with just enough resources."""

__version__ = "0.1.0"
