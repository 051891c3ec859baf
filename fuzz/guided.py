"""Fuzz one reader with atheris: ``python fuzz/guided.py perfdata [libFuzzer's options] [corpus]``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["worldswitch"]):
    from targets import target

    run = target(sys.argv.pop(1))

if __name__ == "__main__":
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()
