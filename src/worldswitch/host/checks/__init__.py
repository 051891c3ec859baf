"""The checks, a module for each subject; ``MODULES`` is the order in which findings of one severity are shown."""

MODULES: tuple[str, ...] = ()
"""Names of the modules of this package that hold checks."""
