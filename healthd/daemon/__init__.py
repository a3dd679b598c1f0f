"""The process around an agent: threads, schedule, signals, service manager, log."""
