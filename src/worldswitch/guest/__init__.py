"""Guest programs: what a guest does, as a value, and as machine code that any VMM can load."""
