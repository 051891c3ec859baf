"""The kit's ``run``: programs of this file and images in others, on this host's KVM."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from worldswitch import __version__
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable
from worldswitch.kit.programs import defaults, image, image_in
from worldswitch.kit.running import Failure, Settings, Work, run_here, settings_of
from worldswitch.kit.words import HOST_PROGRAMS, programs
from worldswitch.live.environment import here
from worldswitch.record.result import Provenance, Result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from worldswitch.record.result import Cell

_QUIET, _EVERY = 1.0, 5.0


def run(asked: argparse.Namespace) -> int:
    """Run what was *asked*, print it, keep it; the exit status."""
    from worldswitch.kit.__main__ import DONE, INTERRUPTED, MISSING, UNSTABLE, USAGE

    work = [Work(spec, None if spec in HOST_PROGRAMS else image(spec)) for spec in programs(asked.programs)]
    work += [Work(path, image_in(path)) for path in asked.image]
    if not work:
        raise UsageError("no program is named; the command programs lists those in this file")
    settings = _settings(asked, work)
    started = _now()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cells, failures, interrupted = _run(work, settings)
    provenance = Provenance(__version__, ("wsw.pyz", *sys.argv[1:]), asdict(settings), None, started, _now())
    result = Result(tuple(cells), provenance, here().environment)
    try:
        if asked.save and cells:
            from worldswitch.record.resultfile import save

            save(result, asked.save)
    finally:
        _show(result, failures, asked.json)
    if interrupted:
        sys.stderr.write("wsw: interrupted; what was finished is shown\n")
        return INTERRUPTED
    if failures:
        return MISSING if isinstance(failures[0].error, MissingError) else USAGE
    return DONE if all(cell.steady for cell in cells) else UNSTABLE


def _settings(asked: argparse.Namespace, work: Sequence[Work]) -> Settings:
    create = {name: getattr(asked, name) for name in ("vms", "burst", "workers", "first_run", "cgroup")}
    return settings_of(work, asked.n, asked.repeat, asked.set, asked.deadline, create)


def _run(work: Sequence[Work], settings: Settings) -> tuple[list[Cell], list[Failure], bool]:
    cells: list[Cell] = []
    failures: list[Failure] = []

    def failed(spec: str, error: WorldswitchError) -> None:
        sys.stderr.write(f"wsw: {error}\n" if len(work) == 1 else f"wsw: {printable(spec)}: {error}\n")
        failures.append(Failure(spec, error))

    try:
        for one in run_here(work, settings, _Line().say):
            if isinstance(one, Failure):
                failed(*one)
            else:
                cells.append(one)
    except WorldswitchError as error:
        failed("kvm", error)
    except KeyboardInterrupt:
        return cells, failures, True
    return cells, failures, False


class _Line:
    """How far it is, on stderr every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _QUIET

    def say(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY
            sys.stderr.write(f"{text}\n")


def _show(result: Result, failures: Sequence[Failure], as_json: bool) -> None:
    if as_json:
        failed = [{"program": one.spec, "error": str(one.error)} for one in failures]
        document: dict[str, Any] = {**result.to_run_json(), "failures": failed}
        sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    elif result.cells:
        from worldswitch.kit.text import text

        sys.stdout.write(text(result, defaults))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
