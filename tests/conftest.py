"""What all tests share: the marker for programs a test needs, and recordings unpacked once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*names): skipped, by name, where one of these programs or abilities (ABILITIES) is not here"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are missing; fail it where WSW_REQUIRE (comma-separated) names them."""
    required = os.environ.get("WSW_REQUIRE", "").split(",")
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            missing = ABILITIES[program]() if program in ABILITIES else _not_installed(program)
            if missing:
                if program in required:
                    pytest.fail(f"needs {program}, which WSW_REQUIRE demands and this machine lacks: {missing}")
                pytest.skip(f"needs {program}: {missing}")


def _not_installed(program: str) -> str | None:
    return None if shutil.which(program) else "it is not installed"


def _no_kvm() -> str | None:
    return None if os.access("/dev/kvm", os.R_OK | os.W_OK) else "/dev/kvm is not there or not ours to open"


def _no_kvm_events() -> str | None:
    """Whether KVM's trace events can be switched on, by perf or in a tracing instance."""
    if os.access("/sys/kernel/tracing/events/kvm/kvm_exit/enable", os.W_OK):
        return None
    return "tracefs has no kvm events this user may switch on"


ABILITIES = {"kvm": _no_kvm, "kvm-events": _no_kvm_events}
"""Names in ``needs`` that are not programs -> why this machine lacks it, None if it does not."""


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
