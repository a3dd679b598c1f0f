"""What a daemon keeps: the fold of all outcomes in memory, and the database that outlives it."""
