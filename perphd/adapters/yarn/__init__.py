"""YARN: the publisher of one NodeManager."""
