"""The real program on a real terminal, tmux's, with a real VM."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from worldswitch.cli import wsw

pytest.importorskip("textual")
pytestmark = pytest.mark.needs("tmux", "kvm")

VMM = Path(__file__).parents[2] / "benchmarks" / "top.py"
WSW = [sys.executable, "-c", "from worldswitch.cli import main; main()"]
PATIENCE = 40.0


class Terminal:
    """A tmux of its own, in which a command runs and then says its status and the terminal's modes."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._socket = str(folder / "tmux")
        line = f"unset COLUMNS LINES; {shlex.join(words)}; echo status=$?; stty -a; exec sleep 600"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "140", "-y", "40", "-c", str(folder), line)

    def tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def until(self, pattern: str) -> str:
        """What is on the screen as soon as the pattern is."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            seen = self.tmux("capture-pane", "-p")
            if re.search(pattern, seen):
                return seen
            time.sleep(0.1)
        raise AssertionError(f"{pattern} did not come:\n{seen}")


@pytest.fixture
def vm() -> Iterator[int]:
    """A VM of four vCPUs, one of which writes to a port, and whose statistics are kept open; its process."""
    process = subprocess.Popen([sys.executable, VMM, "hold"], stdout=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        pytest.skip("this kernel has no KVM_GET_STATS_FD")
    yield process.pid
    process.kill()
    process.communicate()


@pytest.fixture
def terminal(tmp_path: Path, vm: int) -> Iterator[Terminal]:
    found = Terminal(tmp_path, *WSW, "top", "--interval", "250ms", "--vm", str(vm))
    yield found
    found.tmux("kill-server")


def test_a_vm_is_seen_looked_at_and_ctrl_c_restores_the_terminal(terminal: Terminal, vm: int) -> None:
    terminal.until(rf"(?m)^{vm}-\d+ +python\S* +4 +[\d,.kM]*[1-9]")
    terminal.keys("v", "v")
    terminal.until(r"(?m)^reason .*\n\S.* +100\.0%")
    terminal.keys("v", "Enter")
    terminal.until(rf"(?s)VM {vm}-\d+ .*io_exits")
    assert terminal.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"
    terminal.keys("C-c")
    seen = terminal.until(r"status=0")
    seen = terminal.until(r"icanon")
    assert re.search(r"(?<!-)icanon", seen)
    assert re.search(r"(?<!-)\becho\b", seen)
    assert terminal.tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag}").split() == ["0", "0"]


def test_q_ends_it_and_leaves_no_line_behind(terminal: Terminal, vm: int) -> None:
    terminal.until(rf"(?m)^{vm}-")
    terminal.keys("q")
    seen = terminal.until("status=0")
    assert seen.startswith("status=0")


def test_a_vm_that_is_killed_disappears(terminal: Terminal, vm: int) -> None:
    terminal.until(rf"(?m)^{vm}-")
    os.kill(vm, 9)
    terminal.until("0 VMs")


@pytest.mark.needs("perf", "kvm-events")
def test_what_r_records_can_be_analysed(terminal: Terminal, vm: int, tmp_path: Path) -> None:
    terminal.until(rf"(?m)^{vm}-")
    terminal.keys("Enter")
    terminal.until(rf"VM {vm}-")
    terminal.keys("Escape")
    # Esc with a key right after it would be Alt and that key.
    terminal.until(rf"(?m)^{vm}-")
    terminal.keys("r")
    terminal.until(r"REC [1-9]")
    terminal.keys("r")
    terminal.until(r"events, .*next: wsw analyze")
    (recording,) = tmp_path.glob("kvm-*.data*")
    result = CliRunner().invoke(wsw, ["convert", str(recording), "-o", str(tmp_path / "out.txt")])
    assert result.exit_code == 0, result.output
    assert "kvm_pio" in (tmp_path / "out.txt").read_text()
