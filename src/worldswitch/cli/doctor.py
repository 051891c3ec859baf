"""``wsw doctor``: what this host's settings do to KVM, what would change that, and what it gains."""

from __future__ import annotations

import sys

import click

from worldswitch.cli import options
from worldswitch.kit.doctor import LEVELS, PROFILES, Asked
from worldswitch.kit.doctor import doctor as run


@click.command()
@click.argument("snapshots", nargs=-1, metavar="[SNAPSHOT.tar...]")
@click.option("--root", metavar="DIR", help="Judge the host whose root tree is in DIR; no link in it leads out.")
@click.option(
    "--snapshot", metavar="OUT.tar", help="Write what would be read (no secrets) to OUT (.tar, .tar.gz, .xz)."
)
@click.option("--profile", type=click.Choice(PROFILES), default="default", help="What the host is for.")
@click.option("--script", is_flag=True, help="Print a script that fixes (sh SCRIPT fix) or undoes (sh SCRIPT undo).")
@click.option("--prometheus", is_flag=True, help="Print metrics for node_exporter's textfile collector.")
@click.option("--markdown", is_flag=True, help="Print Markdown, to paste into an issue or a mail.")
@click.option("--fail-on", type=click.Choice(LEVELS), help="Exit with 1 if a finding is as bad or worse.")
@options.as_json
@options.as_python
def doctor(
    snapshots: tuple[str, ...],
    root: str | None,
    snapshot: str | None,
    profile: str,
    script: bool,
    prometheus: bool,
    markdown: bool,
    fail_on: str | None,
    as_json: bool,
    as_python: bool,
) -> int:
    """Say what in this host's settings costs KVM speed or safety, what to do, what it gains, and how to undo it.

    It only reads: /proc, /sys and a little of /etc of this host, of --root DIR, or of SNAPSHOTs that --snapshot wrote.
    Several SNAPSHOTs give a table of hosts, the worst first. Nothing is changed, and --script only prints.

    \b
    --profile  default   no trade of safety for speed
               faas      many short-lived microVMs: starting them fast
               realtime  pinned vCPUs: no long interruption
               hardened  hostile guests: no mitigation is given up
    """
    asked = Asked(snapshots, root, snapshot, profile, as_json, prometheus, script, fail_on, markdown)
    if as_python:
        click.echo(_python(asked), nl=False)
        return 0
    from worldswitch.cli.progress import Line

    line = Line()
    try:
        return run(asked, line.say)
    finally:
        line.clear()
        sys.stdout.flush()


def _python(asked: Asked) -> str:
    given = {name: value for name, value in asked._asdict().items() if value != Asked._field_defaults[name]}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    if asked.snapshot or len(asked.snapshots) > 1 or asked.script or asked.prometheus or asked.markdown:
        return f"from worldswitch.kit.doctor import Asked, doctor\n\ndoctor(Asked({arguments}))\n"
    where = (
        f"Snapshot({asked.snapshots[0]!r})"
        if asked.snapshots
        else "fs.Live()"
        if asked.root is None
        else f"fs.Root({asked.root!r})"
    )
    return (
        "from worldswitch.host import fs\n"
        "from worldswitch.host.diagnosis import diagnose\n"
        "from worldswitch.host.finding import Profile\n"
        "from worldswitch.host.gather import gather\n"
        "from worldswitch.host.snapshot import Snapshot\n\n"
        f"for one in diagnose(gather({where}), Profile({asked.profile!r})):\n"
        "    print(one.severity.label, one.id, one.title, one.evidence)\n"
    )
