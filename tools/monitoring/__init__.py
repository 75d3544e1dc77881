"""Makes the Grafana dashboard that the package ships."""
