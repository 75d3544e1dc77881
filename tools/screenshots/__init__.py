"""A simulated host with a past, served like a real one: what the documents' pictures and the browser's tests show."""
