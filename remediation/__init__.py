"""Deciding and acting: `decide` is pure; the engine, the controller and their back ends do the I/O."""
