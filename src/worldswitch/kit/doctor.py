"""The doctor's command, for ``wsw`` and the kit alike: read, judge, print. It writes nothing but OUT."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from worldswitch.errors import MissingError, UnknownNameError, UsageError, WorldswitchError, printable
from worldswitch.host.finding import Profile, Severity

if TYPE_CHECKING:
    from worldswitch.host.document import Diagnosis
    from worldswitch.host.facts import Host

DONE, FOUND, MISSING = 0, 1, 3
PROFILES = tuple(profile.value for profile in Profile)
LEVELS = tuple(severity.label for severity in Severity if severity is not Severity.OK)


class Asked(NamedTuple):
    """What is asked of the doctor.

    Attributes:
        snapshots: Archives to judge; none: this host, or *root*.
        root: A folder that holds a host's tree.
        snapshot: Write what was read here, and judge nothing.
        profile: One of :data:`PROFILES`.
        as_json, prometheus, script, markdown: What to print instead of text.
        fail_on: One of :data:`LEVELS`: a finding as bad or worse makes the status 1.
    """

    snapshots: tuple[str, ...] = ()
    root: str | None = None
    snapshot: str | None = None
    profile: str = Profile.DEFAULT.value
    as_json: bool = False
    prometheus: bool = False
    script: bool = False
    fail_on: str | None = None
    markdown: bool = False


def doctor(asked: Asked, say: Callable[[Callable[[], str]], None] | None = None) -> int:
    """Do what was asked and print it; the exit status.

    Args:
        asked: What is asked.
        say: Called with what gives a line about how far it is.

    Raises:
        UsageError: The request contradicts itself.
        MissingError: What it names can't be read or written.
    """
    _insist_one_way(asked)
    profile, level = _named(asked)
    if asked.snapshot is not None:
        return _write(asked, asked.snapshot)
    done: list[Diagnosis] = []
    failed: list[tuple[str, str]] = []
    for number, (name, one) in enumerate(_diagnoses(asked, profile)):
        if isinstance(one, WorldswitchError):
            if len(asked.snapshots) <= 1:
                raise one
            failed.append((name, str(one)))
        else:
            done.append(one)
        if say is not None:
            say(lambda number=number + 1: f"{number:,} of {len(asked.snapshots):,} snapshots")  # type: ignore[misc]
    _show(asked, done, failed)
    bad = level is not None and any(one.severity >= level for each in done for one in each.findings)
    return FOUND if bad else MISSING if failed else DONE


def _insist_one_way(asked: Asked) -> None:
    if asked.snapshots and asked.root is not None:
        raise UsageError("a host is read from snapshots or from --root, not both")
    if asked.snapshots and asked.snapshot is not None:
        raise UsageError("--snapshot writes what is read of this host or of --root; it takes no other snapshot")
    ways = [f"--{name}" for name in ("as_json", "prometheus", "script", "markdown") if getattr(asked, name)]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} contradict each other; say one of them".replace("as_", ""))
    if asked.snapshot is not None and (ways or asked.fail_on):
        raise UsageError("--snapshot judges nothing: judge what it wrote, with wsw doctor OUT")
    if asked.script and len(asked.snapshots) > 1:
        raise UsageError("a script is for one host; give one snapshot")


def _named(asked: Asked) -> tuple[Profile, Severity | None]:
    if asked.profile not in PROFILES:
        raise UnknownNameError("profile", asked.profile, PROFILES, f"One of {', '.join(PROFILES)}.")
    if asked.fail_on is None:
        return Profile(asked.profile), None
    if asked.fail_on not in LEVELS:
        raise UnknownNameError("level", asked.fail_on, LEVELS, f"One of {', '.join(LEVELS)}.")
    return Profile(asked.profile), Severity[asked.fail_on.upper()]


def read(root: str | None) -> Host:
    """This host, or that of a folder.

    Raises:
        MissingError: The folder is not there, or none.
    """
    from worldswitch.host import fs
    from worldswitch.host.gather import gather

    if root is None:
        return gather(fs.Live())
    if not os.path.isdir(root):  # noqa: PTH112 - pathlib is slow to import
        what = "is no folder" if os.path.exists(root) else "is not there"  # noqa: PTH110
        raise MissingError(f"--root {printable(root)} {what}; name a folder that holds proc, sys and etc of a host")
    return gather(fs.Root(root))


def _diagnoses(asked: Asked, profile: Profile) -> Iterator[tuple[str, Diagnosis | WorldswitchError]]:
    from worldswitch.host.diagnosis import diagnose
    from worldswitch.host.document import Diagnosis
    from worldswitch.host.gather import gather
    from worldswitch.host.snapshot import Snapshot

    if not asked.snapshots:
        host = read(asked.root)
        yield host.name, Diagnosis(host, profile, diagnose(host, profile))
    for path in asked.snapshots:
        try:
            host = gather(Snapshot(path))
            yield path, Diagnosis(host, profile, diagnose(host, profile))
        except MissingError as error:
            yield path, error


def _show(asked: Asked, done: Sequence[Diagnosis], failed: Sequence[tuple[str, str]]) -> None:
    from worldswitch.host import document, text

    fleet = len(asked.snapshots) > 1
    if asked.as_json:
        import json

        shown = (
            {"hosts": [document.document(one) for one in text.in_order(done)], "failed": dict(failed)}
            if fleet
            else document.document(done[0])
        )
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    elif asked.prometheus:
        sys.stdout.write(document.prometheus(done))
    elif asked.markdown:
        from worldswitch.host.markdown import markdown

        sys.stdout.write(markdown(done))
    elif asked.script:
        from worldswitch.host.script import script

        sys.stdout.write(script(done[0].host.name, done[0].findings))
    else:
        sys.stdout.write(text.fleet(done, failed) if fleet else text.report(done[0]))
    if failed and (asked.as_json or asked.prometheus or asked.markdown):
        sys.stderr.write("".join(f"wsw: {why}\n" for _, why in failed))


def _write(asked: Asked, output: str) -> int:
    from worldswitch.host.snapshot import snapshot
    from worldswitch.record.whole import write_whole

    _insist_on_a_file(output)
    host = read(asked.root)
    data = snapshot(host)
    if output.endswith((".gz", ".xz")):
        data = _compressed(data, output)
    output = os.path.realpath(output)
    try:
        write_whole(output, data)
    except OSError as error:
        raise MissingError(
            f"cannot write {printable(output)}: {error.strerror}; give --snapshot another name"
        ) from None
    missing = f", {len(host.missing)} could not be read" if host.missing else ""
    sys.stderr.write(f"{printable(output)}: {len(data):,} bytes, {len(host.files)} files{missing}\n")
    return DONE


def _insist_on_a_file(output: str) -> None:
    """What is written beside a name and renamed to it would take the place of a device, a FIFO or a link."""
    if not output:
        raise UsageError("--snapshot needs the name of a file")
    if output.endswith("/") or os.path.isdir(output):  # noqa: PTH112
        raise UsageError(f"{printable(output)!r} is a folder; give --snapshot the name of a file")
    if os.path.lexists(output) and not os.path.isfile(output):  # noqa: PTH113
        raise UsageError(f"{printable(output)!r} is there and no regular file; give --snapshot the name of a file")


def _compressed(data: bytes, output: str) -> bytes:
    if output.endswith(".gz"):
        import zlib

        squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
        return squeeze.compress(data) + squeeze.flush()
    try:
        lzma = import_module("lzma")  # which a python3 may lack
    except ImportError:
        raise MissingError(f"{printable(output)}: this python3 was built without xz; name it .tar or .tar.gz") from None
    return bytes(lzma.compress(data, preset=9))


class Line:
    """How far it is, on stderr every few seconds; nothing in the first."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0

    def say(self, text: Callable[[], str]) -> None:
        """Show what *text* gives, if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 5.0
            sys.stderr.write(f"{text()}\n")
