"""What settings do to a model: figures before and after each measure, in turn."""
