"""Numbers to something a person or a program reads; nothing here prints."""
