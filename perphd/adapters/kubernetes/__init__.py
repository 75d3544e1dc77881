"""Kubernetes: the API server's client, the publisher of one node, the extender of the stock kube-scheduler."""
