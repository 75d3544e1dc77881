"""Kubernetes: the API client, the publisher of one node, and the extender of kube-scheduler."""
