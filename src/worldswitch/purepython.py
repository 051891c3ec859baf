"""Stands in for the ``cython`` module when a hot module runs uncompiled.

The types of the hot modules live in the ``.pxd`` beside each. The one thing a ``.pxd`` cannot say is where the
GIL may be released; ``with cython.nogil:`` says it in the source, and does nothing here.
"""

from __future__ import annotations

import contextlib

compiled = False
nogil = contextlib.nullcontext()
