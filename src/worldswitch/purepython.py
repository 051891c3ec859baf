"""Stands in for the ``cython`` module when a hot module runs uncompiled.

The types of the hot modules live in the ``.pxd`` beside each. The one thing a ``.pxd`` cannot say is where the
GIL may be released; ``with cython.nogil:`` says it in the source, and does nothing here.
"""

from __future__ import annotations

import contextlib
from typing import Any

compiled = False
nogil = contextlib.nullcontext()


def views(*arrays: Any) -> list[Any]:
    """Each array as a memoryview.

    Compiled loops take them as they take arrays; uncompiled, their items are Python's integers, which neither
    overflow nor warn as numpy's would.
    """
    return [memoryview(array) for array in arrays]
