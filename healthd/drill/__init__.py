"""``healthd drill``: plays a fault at its source and follows it to the decision. Nothing is done about it."""
