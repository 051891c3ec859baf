"""``wsw bundle -o``: a file appears whole; a pipe or a device stays what it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from click.testing import CliRunner

from worldswitch.cli import wsw


def test_into_a_fifo_it_is_written(tmp_path: Path) -> None:
    fifo, plain = tmp_path / "pipe.img", tmp_path / "plain.img"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    assert CliRunner().invoke(wsw, ["bundle", "-o", str(fifo), "nop"]).exit_code == 0
    reader.join(10)
    assert CliRunner().invoke(wsw, ["bundle", "-o", str(plain), "nop"]).exit_code == 0
    assert fifo.is_fifo()
    assert read == [plain.read_bytes()]
    assert plain.stat().st_mode & 0o777 == 0o644


def test_through_a_link_the_file_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    link, file = tmp_path / "link.img", tmp_path / "file.img"
    file.write_bytes(b"old")
    link.symlink_to(file)
    assert CliRunner().invoke(wsw, ["bundle", "-o", str(link), "nop"]).exit_code == 0
    assert link.is_symlink()
    assert file.read_bytes() != b"old"
