"""``healthd controller``: one process that acts for nodes without rights, put together for each kind of cluster."""
