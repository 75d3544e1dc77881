"""A simulated host with a past, served like a real one, for the documents' pictures and the browser tests."""
