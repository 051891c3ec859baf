"""Libraries as the dynamic loader finds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldswitch.errors import MissingError
from worldswitch.lab import elf

PYTHON = Path(sys.executable).resolve()


@pytest.mark.needs("ldd")
def test_needs_what_ldd_says():
    program = Path(shutil.which("ls")).resolve()
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    expected = {Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", said)}
    found = {Path("/", name).resolve() for name in elf.closure(Path("/"), [str(program)])}
    assert found - {program} == expected
    assert len(expected) > 1


def test_a_library_that_is_not_there_is_named_with_who_needs_it(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python").write_bytes(PYTHON.read_bytes())
    with pytest.raises(MissingError, match=r"which usr/bin/python needs, is not in"):
        elf.closure(tmp_path, ["usr/bin/python"])


def test_links_are_named_with_their_targets(tmp_path):
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/real").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "usr/bin/middle").symlink_to("/usr/bin/real")
    (tmp_path / "usr/bin/first").symlink_to("../../bin/middle")
    assert elf.closure(tmp_path, ["bin/first"]) == ("usr/bin/first", "usr/bin/middle", "usr/bin/real")


@pytest.mark.parametrize("target", ["first", "../../../outside/x"])
def test_links_that_lead_nowhere_are_refused(tmp_path, target):
    root = tmp_path / "a/b"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/first").symlink_to(target)
    with pytest.raises(MissingError, match="fetch it again"):
        elf.closure(root, ["usr/bin/first"])


HEAD = PYTHON.read_bytes()[:4096]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4095), st.integers(0, 255))
def test_a_damaged_program_is_refused_or_read(tmp_path_factory, at, value):
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(HEAD[:at] + bytes([value]) + HEAD[at + 1 :])
    try:
        loader, libraries = elf.needed(path)
    except MissingError:
        return
    assert loader is None or isinstance(loader, str)
    assert all(isinstance(name, str) for name in libraries)
