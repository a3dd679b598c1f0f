"""``healthd replay``: what would have been found, decided and done on logs and event stores of the past."""
