"""The daemon's doors: a unix socket for the command line and the hooks, and a read-only HTTP server."""
