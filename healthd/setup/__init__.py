"""Setting healthd up on a node: a first configuration (``healthd init``), and what is missing (``healthd doctor``)."""
