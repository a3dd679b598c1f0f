"""One file per check. A check knows the Node protocol and its own settings, and nothing else of healthd's machinery."""
