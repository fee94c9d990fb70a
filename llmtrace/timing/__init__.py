"""Clocks: the host's, the devices', and how one is mapped onto the other."""
