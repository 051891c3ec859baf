"""What ``wsw fleet --python`` prints does what the command does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
WSW = (sys.executable, "-m", "worldswitch", "fleet")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_its_python_gives_the_same(tmp_path: Path, workers: str) -> None:
    words = ("doctor", str(DATA / "hosts" / "amd-7.2.tar.xz"), "--workers", workers)
    told = subprocess.run([*WSW, *words, "--json"], capture_output=True, text=True, check=True).stdout
    script = tmp_path / "same.py"
    out = ("-o", str(tmp_path / "out"))
    script.write_text(
        subprocess.run([*WSW, *words, *out, "--python"], capture_output=True, text=True, check=True).stdout
    )
    printed = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == repr(json.loads(told))
