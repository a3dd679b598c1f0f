"""``healthd drill``: a fault that is not there, played at its source and followed to what would be done."""
