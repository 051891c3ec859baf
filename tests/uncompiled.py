"""Hot modules from their source, whatever is installed, so that tests can hold both forms against each other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock


def load(*modules: ModuleType) -> ModuleType:
    """The last of *modules*, uncompiled; it sees the others uncompiled too."""
    made: dict[str, ModuleType] = {}
    for module in modules:
        name = module.__name__
        source = Path(str(module.__file__)).with_name(name.rsplit(".", 1)[1] + ".py")
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        made[name] = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, made):
            spec.loader.exec_module(made[name])
    return made[modules[-1].__name__]
