"""The state of a daemon: the fold of all outcomes in memory, and the database that outlives it."""
