"""The dashboard in the browser: a web server in a separate process that reads the daemon's socket and store."""
