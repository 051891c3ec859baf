"""Print the source files the field kit travels with, for `make check` to hold to Python 3.9."""

from pathlib import Path

from worldswitch.kit.archive import modules

ROOT = Path(__file__).resolve().parents[1] / "src" / "worldswitch"

print(*(f"src/{name}" for name in sorted(modules(ROOT))))
