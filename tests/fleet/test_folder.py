"""The folder of a run."""

import fcntl
import os

import pytest

from worldswitch.errors import MissingError, UsageError
from worldswitch.fleet.folder import Folder


def test_what_is_written_is_read(tmp_path):
    folder = Folder(str(tmp_path / "out"))
    with folder.held():
        folder.write("pieces/a", b"1")
        assert folder.read("pieces/a") == b"1"
        assert folder.names("pieces") == {"a"}


def test_what_is_not_there_is_none(tmp_path):
    folder = Folder(str(tmp_path))
    assert folder.read("nothing") is None
    assert folder.names("nothing") == set()


def test_what_a_killed_run_left_half_written_is_swept(tmp_path):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / ".a.parquet.123.tmp").write_bytes(b"half")
    with Folder(str(tmp_path)).held():
        assert not list(tmp_path.rglob("*.tmp"))


def test_a_second_run_in_it_is_refused(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(MissingError, match="another run is at work in"), Folder(str(tmp_path)).held():
            pass
    finally:
        os.close(handle)


def test_a_file_in_its_place_is_named(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(MissingError, match="out: File exists; say -o elsewhere"), Folder(str(tmp_path / "out")).held():
        pass


def test_another_file_system_keeps_it_too():
    folder = Folder("memory://fleet/out")
    with folder.held():
        folder.write("pieces/a", b"1")
    assert folder.read("pieces/a") == b"1"
    assert folder.names("pieces") == {"a"}
    folder.remove("pieces/a")
    assert folder.names("pieces") == set()


def test_a_url_nobody_knows_is_named():
    with pytest.raises(UsageError, match="nosuch://x"):
        Folder("nosuch://x")


def test_no_name_is_refused():
    with pytest.raises(UsageError, match="needs the name"):
        Folder("")
