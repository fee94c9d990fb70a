"""What each tool draws, as PNG; needs matplotlib."""
