"""Records in, numbers with their formula out: pure functions."""
