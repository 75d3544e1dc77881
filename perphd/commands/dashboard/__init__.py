"""The dashboard in the browser: a web server of its own process, fed by the daemon's socket and its store."""
