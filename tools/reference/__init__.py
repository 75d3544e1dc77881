"""Writers of reference pages and man pages from the schema of the configuration and the table of metrics."""
