"""The documents that travel: traces, event formats, and the names in them."""
