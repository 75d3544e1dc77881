"""Public traces of clusters, and those of one's own hosts: one model, imported from any format, and analysed."""
