"""What of the lab is fetched here; what is not is skipped by name."""

from __future__ import annotations

import pytest

from worldswitch.lab import artifacts


def needs_kernel(line: str) -> None:
    """Skip the test that calls it where no kernel of that line is fetched."""
    try:
        artifacts.kernel(line)
    except artifacts.MissingError:
        pytest.skip(f"no kernel {line} is fetched; `wsw lab fetch {line}`")
