"""One module per provider of machines: each reboots or replaces the machine behind this node, and judges nothing."""
