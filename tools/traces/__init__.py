"""Public cluster traces and traces of one's own hosts: imported from any format into one model, and analysed."""
