"""The cache holds whole entries only, and knows when one is no longer as it was stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worldswitch.errors import MissingError
from worldswitch.lab import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "worldswitch" / "lab"


def fill(folder: Path):
    (folder / "sub").mkdir()
    (folder / "sub/file").write_bytes(b"content")
    (folder / "link").symlink_to("sub/file")
    return {"what": "a test", "version": "1"}


def test_an_entry_is_found_as_it_was_stored(own_cache):
    stored = cache.store("tools", "one", fill)
    assert stored == cache.find("tools", "one")
    assert stored.path == own_cache / "tools/one"
    assert stored.about == {"what": "a test", "version": "1"}
    assert stored.size == len(b"content")
    assert stored.damage(thorough=True) is None
    assert [entry.name for entry in cache.entries("tools")] == ["one"]


def test_what_is_there_is_not_filled_again():
    calls = []
    for _ in range(2):
        cache.store("tools", "one", lambda folder: calls.append(1) or fill(folder))
    assert len(calls) == 1
    cache.store("tools", "one", lambda folder: calls.append(1) or fill(folder), anew=True)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda path: (path / "sub/file").unlink(), "sub/file is gone"),
        (lambda path: (path / "sub/file").write_bytes(b"short"), "sub/file has 5 bytes, not 7"),
        (lambda path: ((path / "link").unlink(), (path / "link").symlink_to("x")), "the link link was changed"),
    ],
)
def test_damage_is_named_with_the_remedy_and_repaired(harm, told):
    entry = cache.store("tools", "one", fill)
    harm(entry.path)
    assert entry.damage() == told
    with pytest.raises(MissingError, match=f"is damaged: {told}; fetch it again"):
        cache.whole(entry, "fetch it again")
    assert cache.store("tools", "one", fill).damage(thorough=True) is None


def test_changed_content_of_the_same_size_is_seen_by_a_thorough_look():
    entry = cache.store("tools", "one", fill)
    (entry.path / "sub/file").write_bytes(b"CONTENT")
    assert entry.damage() is None
    assert entry.damage(thorough=True) == "the content of sub/file was changed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "about": {}, "files": {}}', "null"])
def test_an_entry_with_a_broken_manifest_is_no_entry(text):
    entry = cache.store("tools", "one", fill)
    (entry.path / cache.MANIFEST).write_text(text)
    assert cache.find("tools", "one") is None
    assert cache.store("tools", "one", fill).damage(thorough=True) is None


def test_a_failed_fill_leaves_nothing_and_keeps_the_old_entry(own_cache):
    def fails(folder):
        (folder / "half").write_bytes(b"x")
        raise MissingError("the mirror is gone")

    with pytest.raises(MissingError, match="the mirror is gone"):
        cache.store("tools", "one", fails)
    assert list((own_cache / "tools").iterdir()) == []
    cache.store("tools", "one", fill)
    with pytest.raises(MissingError):
        cache.store("tools", "one", fails, anew=True)
    assert cache.find("tools", "one").damage(thorough=True) is None


def test_a_full_disk_is_a_clear_error(own_cache):
    def fills_the_disk(folder):
        (folder / "file").symlink_to("/dev/full")
        (folder / "file").write_bytes(b"x" * 10)

    with pytest.raises(MissingError, match=r"the disk of .* is full .*set XDG_CACHE_HOME"):
        cache.store("tools", "one", fills_the_disk)
    assert list((own_cache / "tools").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        with pytest.raises(MissingError, match=f"the cache {place}/.* cannot be written .*set XDG_CACHE_HOME"):
            cache.store("tools", "one", fill)


FILLER = """
import sys, time
from pathlib import Path
from worldswitch.lab import cache
def fill(folder):
    with open(sys.argv[1], "a") as log:
        log.write("filled\\n")
    (folder / "file").write_bytes(b"x" * 1000)
    print("filling", flush=True)
    time.sleep(float(sys.argv[2]))
    return {"what": "slow"}
print(cache.store("tools", "slow", fill).path)
"""


def run_filler(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FILLER, str(log), str(seconds)], stdout=subprocess.PIPE, text=True)


def test_of_two_runs_that_want_the_same_one_fills_and_both_have_it(tmp_path):
    runs = [run_filler(tmp_path / "log", 0.5) for _ in range(2)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert (tmp_path / "log").read_text() == "filled\n"
    assert {output.splitlines()[-1] for output in outputs} == {str(cache.find("tools", "slow").path)}


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_nothing_that_looks_like_an_entry(tmp_path, own_cache, sent):
    run = run_filler(tmp_path / "log", 60)
    assert run.stdout.readline() == "filling\n"
    os.kill(run.pid, sent)
    run.communicate(timeout=30)
    assert cache.find("tools", "slow") is None
    assert cache.entries("tools") == []
    started = time.monotonic()
    cache.store("tools", "slow", fill)
    assert time.monotonic() - started < 30  # its lock died with it
    assert [path.name for path in (own_cache / "tools").iterdir()] == ["slow"]


def test_an_entry_can_be_removed():
    cache.store("tools", "one", fill)
    assert cache.remove("tools", "one")
    assert not cache.remove("tools", "one")
    assert cache.entries("tools") == []


def test_the_manifest_names_every_file(own_cache):
    cache.store("tools", "one", fill)
    manifest = json.loads((own_cache / "tools/one" / cache.MANIFEST).read_text())
    assert manifest["files"] == {
        "link": [-1, "sub/file"],
        # printf content | sha256sum
        "sub/file": [7, "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"],
    }


def test_changed_content_below_a_path_is_an_error_and_paths_elsewhere_are_not(tmp_path):
    entry = cache.store("tools", "one", fill)
    cache.unchanged(entry.path / "sub/file", "fetch it again")
    (entry.path / "sub/file").write_bytes(b"CONTENT")
    with pytest.raises(MissingError, match="is damaged: the content of sub/file was changed; fetch it again"):
        cache.unchanged(entry.path / "link", "fetch it again")
    cache.unchanged(tmp_path / "elsewhere", "fetch it again")
    cache.unchanged(cache.root(), "fetch it again")
