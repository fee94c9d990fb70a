"""One recorder per request on the hot path; everything else happens after it, off the thread."""
