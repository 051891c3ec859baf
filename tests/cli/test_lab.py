"""``wsw lab fetch``, ``list`` and ``build`` as a user calls them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import deb_build
from worldswitch.cli.lab import ELSEWHERE, lab
from worldswitch.errors import MissingError, UsageError
from worldswitch.lab import cache


@pytest.fixture
def debs(tmp_path, monkeypatch):
    """A folder of packages with one kernel and a userland; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "debs"
    folder.mkdir()
    deb_build.kernel(folder, "6.1.176-1", "6.1.0-50-cloud-amd64")
    deb_build.deb(folder, "busybox-static", "1:1.37", {"usr/bin/busybox": b"bb"})
    deb_build.deb(folder, "python3.13-minimal", "3.13", {"usr/bin/python3.13": b"py"})
    deb_build.deb(folder, "libpython3.13-stdlib", "3.13", {"usr/lib/python3.13/os.py": b""})
    return folder


def called(*words: str):
    done = CliRunner().invoke(lab, list(words), standalone_mode=False)
    if done.exception:
        raise done.exception
    return done


def test_fetch_from_a_folder_then_list(debs):
    done = called("fetch", "6.1", "--mirror", str(debs), "--json")
    fetched = json.loads(done.stdout)["fetched"]
    assert fetched[0]["version"] == "6.1.176" and fetched[1]["userland"].endswith("userland/base")
    listed = json.loads(called("list", "--json").stdout)
    assert {(entry["kind"], entry["name"]) for entry in listed["entries"]} == {
        ("kernels", "6.1.0-50-cloud-amd64"),
        ("userland", "base"),
    }
    assert all(entry["damage"] is None for entry in listed["entries"])
    assert "Linux 6.1.176" in called("list").stdout


def test_list_of_an_empty_cache_says_what_to_do(debs, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    done = called("list")
    assert done.return_value == 0
    assert done.stdout == f"Nothing is in {cache.root()}; wsw lab fetch 6.12 gets a kernel.\n"


def test_list_names_damage_with_status_3(debs):
    called("fetch", "6.1", "--mirror", str(debs))
    program = cache.root() / "userland/base/usr/bin/busybox"
    program.write_bytes(b"XX")
    assert called("list").return_value == 0
    done = called("list", "--check", "--json")
    assert done.return_value == 3
    damage = {entry["name"]: entry["damage"] for entry in json.loads(done.stdout)["entries"]}
    assert damage["base"] == "the content of usr/bin/busybox was changed"
    called("fetch", "6.1", "--mirror", str(debs))
    assert called("list", "--check").return_value == 0


def test_fetch_of_nothing_names_what_there_is_to_fetch():
    with pytest.raises(UsageError, match=r"wsw lab fetch 5\.10 6\.1 6\.12 7\.2"):
        called("fetch")


def test_a_mirror_that_is_neither_url_nor_folder():
    with pytest.raises(UsageError, match="--mirror nowhere is neither a URL nor a folder"):
        called("fetch", "6.1", "--mirror", "nowhere")


def test_python_prints_calls_that_do_the_same(debs):
    code = called("fetch", "6.1", "--mirror", str(debs), "--python").stdout
    exec(compile(code, "printed", "exec"), {})
    assert cache.find("kernels", "6.1.0-50-cloud-amd64") and cache.find("userland", "base")
    code = called("build", "6.1", "--revert", "cr0-wp-owned", "--name", "x", "--python").stdout
    compile(code, "printed", "exec")
    assert "reverts=('cr0-wp-owned',)" in code


def test_a_build_without_headers_in_the_folder_names_them(debs):
    with pytest.raises(MissingError, match=r"has no package linux-headers-6\.1\.0-50-cloud-amd64"):
        called("build", "6.1", "--name", "x", "--mirror", str(debs))
    assert cache.entries("builds") == [] == cache.entries("buildroots")


def test_a_fact_the_kernel_lacks_cannot_be_taken_out(debs):
    with pytest.raises(UsageError, match=r"6\.1\.176 does not have cr4-cet-owned"):
        called("build", "6.1", "--revert", "cr4-cet-owned", "--name", "x", "--mirror", str(debs))


def test_help_lists_all_subcommands():
    text = called("--help").stdout
    for name in ("fetch", "list", "build", *ELSEWHERE):
        assert f"  {name} " in text


@pytest.mark.needs("lab")
def test_a_kernel_is_fetched_from_this_machines_mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = called("fetch", "6.12", "--json")
    kernel = json.loads(done.stdout)["fetched"][0]
    assert kernel["version"].startswith("6.12.") and kernel["release"].endswith("-cloud-amd64")
    assert called("list", "--check").return_value == 0
    with pytest.raises(MissingError, match=r"has no kernel 4\.19; it has .*6\.12\."):
        called("fetch", "4.19")
