from __future__ import annotations

import ast
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

import worldswitch
from worldswitch.kit import STANDARD_LIBRARY, archive

ROOT = Path(worldswitch.__file__).parent


def test_every_import_of_the_kit_is_its_own_or_the_standard_librarys() -> None:
    sources = archive.modules(ROOT)
    found = {
        top for data in sources.values() for name in archive.imports(ast.parse(data)) if (top := name.partition(".")[0])
    }
    assert sorted(found - {"__future__", "worldswitch"}) == list(STANDARD_LIBRARY)
    assert set(STANDARD_LIBRARY) <= sys.stdlib_module_names


def test_modules_are_found_through_functions_and_packages() -> None:
    sources = archive.modules(ROOT)
    assert {"worldswitch/__init__.py", "worldswitch/live/__init__.py", "worldswitch/live/create_vm.py"} <= set(sources)
    assert "worldswitch/kit/archive.py" not in sources
    assert "worldswitch/record/trace.py" not in sources


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os, json.decoder", ["os", "json.decoder"]),
        ("from a import b, c", ["a", "a.b", "a.c"]),
        ("def f():\n    if x:\n        import deep", ["deep"]),
        ("try:\n    import one\nexcept ImportError:\n    import two", ["one", "two"]),
        ("if TYPE_CHECKING:\n    import types_only\nelse:\n    import real", ["real"]),
        ("if typing.TYPE_CHECKING:\n    import types_only", []),
    ],
)
def test_imports(source: str, expected: list[str]) -> None:
    assert list(archive.imports(ast.parse(source))) == expected


def test_an_archive_holds_what_it_was_given() -> None:
    index = {"version": "1", "programs": {"nop": {"file": "0.img"}}}
    data = archive.pack({"worldswitch/x.py": b"x = 1\n"}, {"nop": b"image"}, index)
    assert data.startswith(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(BytesIO(data)) as opened:
        assert opened.read("worldswitch/x.py") == b"x = 1\n"
        assert opened.read("worldswitch/kit/images/0.img") == b"image"
        assert {entry.date_time for entry in opened.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert opened.namelist() == sorted(opened.namelist())


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 8, 18)])
def test_an_older_python_is_told_so_before_anything_is_imported(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(BytesIO(archive.pack({}, {}, {"version": "1", "programs": {}}))) as opened:
        start = opened.read("__main__.py").decode()
    ast.parse(start, feature_version=(3, 4))
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit) as ended:
        exec(start, {})
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "needs python3 3.9 or newer" in said
    assert f"is {'.'.join(map(str, version))};" in said
