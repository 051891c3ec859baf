"""The Python that the guest gets: what is chosen of its library, and that what is compiled runs."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from worldswitch.lab.l1 import library


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os.path", {"os", "os.path"}),
        ("def f():\n    from json import decoder", {"json", "json.decoder"}),
        ("try:\n    import _lzma\nexcept ImportError:\n    pass", {"_lzma"}),
        ("from . import sibling", {"pkg", "pkg.sibling"}),
        ("from .sibling import name", {"pkg.sibling", "pkg", "pkg.sibling.name"}),
    ],
)
def test_imports_are_found_wherever_they_stand(source, names):
    assert names <= set(library.imported(source, "pkg.mod"))


def test_what_a_module_needs_comes_along_and_what_is_left_out_does_not(tmp_path):
    for name, text in {
        "os.py": "import stat, ssl, gone", "stat.py": "", "ssl.py": "import secret", "secret.py": "", "other.py": "",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    assert [str(path) for path in library.select(tmp_path)] == ["os.py", "stat.py"]
    assert Path("other.py") in library.select(tmp_path, ["other"])


def test_this_pythons_own_library_is_enough_for_small_programs(tmp_path):
    own = Path(sysconfig.get_path("stdlib"))
    library.write_library(own, tmp_path, ["difflib"])
    names = "argparse, json, ctypes, mmap, subprocess, tempfile, dataclasses, enum, difflib, tarfile, traceback"
    code = f"import sys; sys.path[:] = sys.argv[1:]; import {names}; print(json.__file__)"
    paths = [str(tmp_path), str(own / "lib-dynload")]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "json/__init__.pyc")
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.pyc"))
    assert size < 6_000_000


def test_a_compiled_kit_runs_and_keeps_its_docstrings(tmp_path):
    kit, out = tmp_path / "kit", tmp_path / "out.pyz"
    with zipfile.ZipFile(kit, "w") as archive:
        archive.writestr("__main__.py", "from pkg import inner\nprint(inner.f.__doc__, __debug__)\n")
        archive.writestr("pkg/__init__.py", "")
        archive.writestr("pkg/inner.py", "import difflib\ndef f():\n    'said'\n")
        archive.writestr("pkg/data.json", "{}")
    assert "difflib" in library.write_kit(kit, out)
    with zipfile.ZipFile(out) as archive:
        assert sorted(archive.namelist()) == ["__main__.pyc", "pkg/__init__.pyc", "pkg/data.json", "pkg/inner.pyc"]
    done = subprocess.run([sys.executable, "-I", "-S", str(out)], capture_output=True, text=True, check=True)
    assert done.stdout == "said True\n"
