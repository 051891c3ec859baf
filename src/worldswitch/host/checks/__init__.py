"""The checks, a module for each subject, in the order in which findings of one severity are shown."""

# Each import registers its checks. They are named here one by one, and not looked for, so that the field kit's
# bundler sees what to take along.
