"""The script itself, before any command of it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from worldswitch.cli import INTERRUPTED


def test_ctrl_c_while_loading_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-m", "worldswitch", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "wsw: interrupted\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "worldswitch", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: wsw ")
