"""What each tool says in the terminal."""
