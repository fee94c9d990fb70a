"""ITL over token positions: every gap and its parts, their course, and where they leave it."""
