"""Public cluster traces and traces of an operator's own hosts, imported into one model and analysed."""
