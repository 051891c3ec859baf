"""The sections of a report: each module turns one kind of input, or one side of it, into figures."""
