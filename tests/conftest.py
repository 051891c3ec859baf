"""What all tests share: the marker for programs a test needs, and recordings unpacked once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*programs): skipped, by name, where one of these is not installed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are missing; fail it where WSW_REQUIRE (comma-separated) names them."""
    required = os.environ.get("WSW_REQUIRE", "").split(",")
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            if shutil.which(program) is None:
                if program in required:
                    pytest.fail(f"needs {program}, which WSW_REQUIRE demands and this machine lacks")
                pytest.skip(f"needs {program}, which is not installed")


@pytest.fixture(scope="session")
def plain_recording(tmp_path_factory: pytest.TempPathFactory):
    """A function: the path of a recording in tests/data, decompressed if it is ``.zst``."""

    def path(name: str) -> Path:
        packed = DATA / name
        if packed.suffix != ".zst":
            return packed
        import zstandard

        target = tmp_path_factory.getbasetemp() / name.replace("/", "-").removesuffix(".zst")
        if not target.exists():
            with packed.open("rb") as source, target.open("wb") as sink:
                zstandard.ZstdDecompressor().copy_stream(source, sink)
        return target

    return path
