"""The only code that reads the machine. A source answers questions; it never judges, and never knows a check."""
