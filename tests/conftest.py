"""What all tests share: the marker for programs a test needs, and recordings unpacked once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast inputs are made says how busy the host is, nothing about the code.
settings.register_profile("counts", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("counts")

DATA = Path(__file__).parent / "data"

UNCOMPILED = bool(os.environ.get("WSW_UNCOMPILED"))
"""Run the hot modules from their source, although compiled ones lie beside it."""
TOO_LONG_UNCOMPILED = ("svm-6.12-npt-300k", "million")
"""What test ids must not hold then: the one recording, and the numbers, that take minutes."""


class _FromSource(MetaPathFinder):
    """Finds the .py of each module that has a .pxd beside it."""

    def find_spec(self, fullname, path=None, target=None):
        for folder in path or () if fullname.startswith("worldswitch.") else ():
            source = Path(folder) / f"{fullname.rpartition('.')[2]}.py"
            if source.exists() and source.with_suffix(".pxd").exists():
                return spec_from_file_location(fullname, source)
        return None


if UNCOMPILED:
    # pytest has loaded our own plugin, which loads nothing else.
    early = {name for name in sys.modules if name.startswith("worldswitch.")} - {"worldswitch.pytest_plugin"}
    assert not early, "too late to choose the sources"
    sys.meta_path.insert(0, _FromSource())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*names): skipped, by name, where one of these programs or abilities (ABILITIES) is not here"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are missing; fail it where WSW_REQUIRE (comma-separated) names them."""
    if UNCOMPILED and any(word in item.nodeid for word in TOO_LONG_UNCOMPILED):
        pytest.skip("takes minutes uncompiled")
    required = os.environ.get("WSW_REQUIRE", "").split(",")
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            missing = ABILITIES[program]() if program in ABILITIES else _not_installed(program)
            if missing:
                if program in required:
                    pytest.fail(f"needs {program}, which WSW_REQUIRE demands and this machine lacks: {missing}")
                pytest.skip(f"needs {program}: {missing}")


def _not_installed(program: str) -> str | None:
    return None if shutil.which(program) else "it is not installed"


def _no_kvm() -> str | None:
    return None if os.access("/dev/kvm", os.R_OK | os.W_OK) else "/dev/kvm is not there or not ours to open"


def _no_kvm_events() -> str | None:
    """Whether KVM's trace events can be switched on, by perf or in a tracing instance."""
    if os.access("/sys/kernel/tracing/events/kvm/kvm_exit/enable", os.W_OK):
        return None
    return "tracefs has no kvm events this user may switch on"


def _no_cgroups() -> str | None:
    """Whether this user may make a control group."""
    from worldswitch.live.cgroups import mounts

    writable = any(os.access(mount.path / "cgroup.procs", os.W_OK) for mount in mounts()[:1])
    return None if writable else "no hierarchy of control groups is mounted in which this user may make one"


def _python39() -> str | None:
    """A Python 3.9 that runs (a shim of pyenv may not), on PATH or among pyenv's."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("3.9.*/bin/python3.9"))
    for candidate in (shutil.which("python3.9"), *map(str, installed)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def _no_python39() -> str | None:
    return None if _python39() else "there is none on PATH or in ~/.pyenv/versions"


@pytest.fixture(scope="session")
def python39() -> str | None:
    """The oldest Python the field kit runs on; None where there is none, which ``needs("python3.9")`` skips."""
    return _python39()


def _no_lab() -> str | None:
    """Whether this machine's own Debian mirror answers, so that the lab can be fetched."""
    from urllib.request import urlopen

    from worldswitch.errors import MissingError
    from worldswitch.lab import apt

    try:
        mirror = apt.own_mirror()
        with urlopen(f"{mirror.url}/dists/trixie/InRelease", timeout=10) as answer:
            answer.read(1)
    except (MissingError, OSError, ValueError) as error:
        return f"no Debian mirror answers: {error}"
    return None


def _nothing_of(kind: str) -> str | None:
    """Whether the lab's cache, the user's own, has entries of a kind; they take minutes to make."""
    from worldswitch.lab import cache

    return None if cache.entries(kind) else f"the lab's cache has no {kind}; `wsw lab build` makes one"


def _no_machine(cpu: str) -> str | None:
    """Whether the lab has a kernel, its guest's programs and an emulator of that vendor's processor."""
    from worldswitch.errors import MissingError
    from worldswitch.lab import artifacts, cache

    try:
        if not cache.entries("kernels"):
            return "no kernel is fetched; `wsw lab fetch 6.12` gets one"
        artifacts.userland()
        if cpu == "amd":
            artifacts.qemu()
        else:
            artifacts.bochs()
            artifacts.iso_tools()
    except MissingError as error:
        return str(error)
    return None


def chromium() -> str | None:
    """The browser that tests of pages drive, if it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _no_chromium() -> str | None:
    from importlib.util import find_spec

    if find_spec("playwright") is None:
        return "playwright is not installed; it comes with the extra dev"
    return None if chromium() else "no chromium is on PATH; `make system-deps` installs it"


def _no_docs() -> str | None:
    """Whether the documentation site can be built."""
    from importlib.util import find_spec

    missing = [name for name in ("material", "mkdocstrings") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed; they come with the extra docs" if missing else None


ABILITIES = {
    "buildroot": lambda: _nothing_of("buildroots"),
    "build": lambda: _nothing_of("builds"),
    "cgroups": _no_cgroups,
    "chromium": _no_chromium,
    "docs": _no_docs,
    "kvm": _no_kvm,
    "kvm-events": _no_kvm_events,
    "lab": _no_lab,
    "lab-amd": lambda: _no_machine("amd"),
    "lab-intel": lambda: _no_machine("intel"),
    "python3.9": _no_python39,
}
"""Names in ``needs`` that are not programs -> why this machine lacks it, None if it does not."""


@pytest.fixture(scope="session")
def chromium_path() -> str | None:
    """Where chromium is; None where it is not, which ``needs("chromium")`` skips."""
    return chromium()


@pytest.fixture(scope="session", name="chromium")
def _chromium(chromium_path: str | None):
    """One Chromium for all: Playwright runs no two at once in a process."""
    from browser import browser

    assert chromium_path is not None
    with browser(chromium_path) as one:
        yield one


@pytest.fixture(scope="session")
def plain_recording(tmp_path_factory: pytest.TempPathFactory):
    """A function: the path of a recording in tests/data, decompressed if it is ``.zst``."""

    def path(name: str) -> Path:
        packed = DATA / name
        if packed.suffix != ".zst":
            return packed
        import zstandard

        target = tmp_path_factory.getbasetemp() / name.replace("/", "-").removesuffix(".zst")
        if not target.exists():
            with packed.open("rb") as source, target.open("wb") as sink:
                zstandard.ZstdDecompressor().copy_stream(source, sink)
        return target

    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests the uncompiled run left out (-ra names each), and what of the documents is only shown."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind if hasattr(report, "nodeid")]
    if any(report.nodeid.startswith("tests/test_documents.py") for report in reports):
        _say_what_is_only_shown(terminalreporter)
    if UNCOMPILED:
        skipped = terminalreporter.stats.get("skipped", [])
        count = sum("takes minutes uncompiled" in str(report.longrepr) for report in skipped)
        terminalreporter.write_line(f"uncompiled: {count} tests left out because they take minutes")


def _say_what_is_only_shown(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the commands of the documents that no test runs."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
    from docs_commands import blocks, commands, documents

    found = [one for page in documents() for one in commands(page)]
    parsed = [one for one in found if one.takes_minutes and not one.shown]
    shown = [one for page in documents() for one in blocks(page) if one.language == "text"]
    terminalreporter.write_line(
        f"documents: {len(found) - len(parsed)} commands to run, {len(parsed)} of the lab parsed and not run, "
        f"{len(shown)} blocks of text only shown, which are:"
    )
    for one in shown:
        terminalreporter.write_line(f"  {one.document.name}: {one.text.splitlines()[0].strip()[:100]}")
