"""``wsw top``: exits of every VM of this host, live."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from worldswitch.cli import options
from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.units import parse_duration

if TYPE_CHECKING:
    from worldswitch.live.sampling import Source

_LEAST = 0.05


@click.command()
@click.option("--interval", default="1s", metavar="DURATION", help="Time between samples.  [default: 1s]")
@click.option("--vm", "vms", multiple=True, metavar="VM|PID|NAME", help="Only this VM, or those of this process.")
@click.option("--trace", is_flag=True, help="Count exits by reason through tracefs, from the start.")
@click.option("--once", is_flag=True, help="One interval, printed; needs no textual and no terminal.")
@click.option("--prometheus", is_flag=True, help="With --once: OpenMetrics, for node_exporter's textfile collector.")
@click.option("--root", type=click.Path(path_type=Path), metavar="DIR", help="Read the tree of files in DIR instead.")
@options.as_json
@options.as_python
def top(
    interval: str,
    vms: tuple[str, ...],
    trace: bool,
    once: bool,
    prometheus: bool,
    root: Path | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Show the exits of every VM of this host, live: by VM, vCPU and reason, with page faults, polling and huge pages.

    It reads KVM's statistics in debugfs (root), and those a VMM keeps open, which has each vCPU by itself. Keys are
    in its last line; ? explains them and the columns, ! says what this user cannot see and how to get it.
    """
    seconds = parse_duration(interval) / 1e9
    if not _LEAST <= seconds <= 3600:
        raise UsageError(f"--interval {printable(interval)}: from {_LEAST:g} s to an hour")
    if prometheus and as_json:
        raise UsageError("--json and --prometheus exclude each other")
    if (prometheus or as_json) and not once:
        raise UsageError("--json and --prometheus print one interval: add --once")
    if as_python:
        click.echo(_python(seconds, root, trace))
        return 0
    if root is not None and not root.is_dir():
        raise MissingError(f"--root {printable(str(root))!r} is no folder")
    if not once:
        return _live(seconds, vms, trace, root)
    return _once(_source(root), seconds, vms, trace, as_json, prometheus)


def _source(root: Path | None) -> Source:
    from worldswitch.live.sampling import Host

    return Host() if root is None else Host(root)


def _live(seconds: float, vms: tuple[str, ...], trace: bool, root: Path | None) -> int:
    try:
        from worldswitch.cli.top_app import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingError(
            "wsw top draws with textual, which is not installed: pip install 'worldswitch[tui]'; --once needs none"
        ) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise MissingError("wsw top draws on a terminal, and this is none; --once prints one interval")
    app = Top(_source(root), seconds, vms, trace)
    app.run()
    return app.return_code or 0


def _once(source: Source, seconds: float, vms: tuple[str, ...], trace: bool, as_json: bool, prometheus: bool) -> int:
    from worldswitch.cli import top_text
    from worldswitch.live.rates import between

    try:
        if trace:
            source.trace(True)
        before = source.sample().only(vms)
        whole = [one.name for one in before.vms]
        before = source.sample(whole).only(vms)
        time.sleep(seconds)
        rates = between(before, source.sample(whole).only(vms))
    finally:
        source.close()
    if vms and not rates.vms:
        raise MissingError(f"no VM {printable(', '.join(vms))} runs here; wsw top --once without --vm lists them")
    if as_json:
        options.print_json(top_text.document(rates))
        return 0
    click.echo(top_text.openmetrics(rates) if prometheus else top_text.text(rates), nl=False)
    for lack in rates.lacks:
        click.echo(f"wsw: {lack}", err=True)
    if not rates.vms and rates.lacks:
        return 3
    return 0


def _python(seconds: float, root: Path | None, trace: bool) -> str:
    where = "Host()" if root is None else f"Host(Path({str(root)!r}))"
    return "\n".join(
        [
            "import time",
            *(["from pathlib import Path"] if root is not None else []),
            "from worldswitch.live.rates import between",
            "from worldswitch.live.sampling import Host",
            "",
            f"host = {where}",
            *(["host.trace(True)"] if trace else []),
            "before = host.sample()",
            f"time.sleep({seconds:g})",
            "for vm in between(before, host.sample()).vms:",
            "    print(vm.name, vm.process, vm.rates.get('exits'), vm.by_reason())",
            "host.close()",
        ]
    )
