"""One module per cluster manager: each takes this node out of service and puts it back, and judges nothing."""
