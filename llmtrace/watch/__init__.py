"""A running program's trace files, followed in the terminal."""
