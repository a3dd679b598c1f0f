"""The texts that healthd leaves with the cluster: one grammar each, written here and read here. Pure."""
