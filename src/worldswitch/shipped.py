"""Documents that ship beside the modules: TOML where they are written, JSON in the field kit."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from typing import Any


def shipped(package: str, name: str) -> dict[str, Any]:
    """The document *name* of *package*: of ``NAME.json`` if that is there (Python 3.9 reads no TOML), or ``NAME.toml``.

    Raises:
        FileNotFoundError: There is neither.
    """
    try:
        found: dict[str, Any] = json.loads(pkgutil.get_data(package, f"{name}.json") or b"")
    except OSError:
        # Named so that the field kit, which has the JSON, is not said to need it.
        tomllib = import_module("tomllib")
        found = tomllib.loads((pkgutil.get_data(package, f"{name}.toml") or b"").decode("utf-8"))
    return found
