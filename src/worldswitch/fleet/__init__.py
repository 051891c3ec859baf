"""Many traces, snapshots or cells of a sweep: cut into pieces, worked on here or by Dask, and merged.

What is finished is kept piece by piece, so a run that was killed goes on where it was, and the same inputs give the
same bytes whatever did the work.
"""
