"""``wsw nx timeline``: NX huge pages of a host full of VMs, over time, on any kernel."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from worldswitch.cli import options
from worldswitch.cli.nx_places import Place, loaded, place_options, places, python
from worldswitch.errors import UsageError, printable
from worldswitch.units import format_ns, parse_duration

if TYPE_CHECKING:
    from worldswitch.costs.atoms import Atom
    from worldswitch.kvm.nx_recovery import Mmu
    from worldswitch.simulation.nx_fleet import Fleet, Timeline

_FIELDS = ("end_ms", "split", "split_most", "executions", "again", "zapped", "passes", "pass_most")

_LEGEND = (
    "split: huge pages split on average; huge: share of the memory that is not; first, again: splits by first "
    "executions and by those after a recovery; most a pass: zaps of the largest pass of one VM."
)


class Followed(NamedTuple):
    """One kernel's timeline."""

    place: Place
    line: Timeline


@click.command()
@place_options
@click.option("--vms", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=24.0, show_default=True)
@click.option("--huge-pages", type=click.IntRange(1), default=1024, show_default=True, help="2 MiB pages of each VM.")
@click.option("--executed", type=click.IntRange(0), default=64, show_default=True, help="Of these, those with code.")
@click.option("--first", default="10m", show_default=True, help="Mean time until such a page is executed first.")
@click.option("--again", default="5m", show_default=True, help="Mean time until a recovered page is executed again.")
@click.option("--opted-out", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of the VMs.")
@click.option("--mmu", type=click.Choice(["tdp", "legacy", "shadow"]), default="tdp", show_default=True)
@click.option("--zap-cost", metavar="DURATION", help="What one zap costs a guest, as you measured it.")
@click.option("--intervals", type=click.IntRange(1, 1000), default=24, show_default=True, help="Lines of the table.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one line for each interval.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a picture to this SVG file.")
@options.as_json
@options.as_python
def timeline(
    mmu: str,
    zap_cost: str | None,
    intervals: int,
    as_csv: bool,
    output: Path | None,
    as_json: bool,
    as_python: bool,
    **given: Any,
) -> int:
    """Follow VMs whose executed huge pages are split and recovered, for hours; the default kernel is 7.2.

    The same seed gives the same numbers. The pages and times of a VM are examples: give yours.
    """
    fleet = _fleet(given)
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    if output and output.suffix.lower() != ".svg":
        raise UsageError(f"-o {printable(str(output))} is no .svg file; that is the one picture written")
    chosen = places(**{name: given[name] for name in ("cpu", "multihit", "mitigations_off", "realtime", "sets")},
                    kernel=given["kernel"] or "7.2")  # fmt: skip
    kind: Mmu = "tdp" if mmu == "tdp" else "shadow"
    if as_python:
        first = "from worldswitch.simulation.nx_fleet import Fleet, follow"
        call = f"print(follow(has, state, {fleet!r}, mmu={kind!r}, intervals={intervals}))"
        click.echo(python(chosen[0], [first, call]))
        return 0
    from worldswitch.report.tables import wrapped

    cost = _cost(zap_cost)
    followed = [_follow(place, fleet, kind, intervals) for place in chosen]
    if output:
        _write(output, _picture(followed))
    if as_json:
        options.print_json(_document(followed, cost))
    elif as_csv:
        click.echo(_csv(followed, cost), nl=False)
    else:
        click.echo("\n".join(_text(one, cost) for one in followed), nl=False)
        click.echo(f"\n{wrapped(_LEGEND)}\n{wrapped(f'A zap is taken to cost {format_ns(cost.mid)}: {cost.origin}.')}")
    return 0


def _fleet(given: dict[str, Any]) -> Fleet:
    from worldswitch.simulation.nx_fleet import Fleet

    return Fleet(
        vms=given["vms"],
        hours=given["hours"],
        huge_pages=given["huge_pages"],
        executed=given["executed"],
        first_ms=_milliseconds("--first", given["first"]),
        again_ms=_milliseconds("--again", given["again"]),
        opted_out=given["opted_out"],
        seed=given["seed"],
    )


def _milliseconds(option: str, text: str) -> int:
    milliseconds = parse_duration(text) // 10**6
    if not milliseconds:
        raise UsageError(f"{option} {printable(text)} is less than a millisecond")
    return milliseconds


def _cost(given: str | None) -> Atom:
    from dataclasses import replace

    from worldswitch.simulation.nx_fleet import REPORTED

    if given is None:
        return REPORTED
    value = float(parse_duration(given))
    return replace(REPORTED, low=value, mid=value, high=value, origin="given by --zap-cost")


def _follow(place: Place, fleet: Fleet, mmu: Mmu, intervals: int) -> Followed:
    from worldswitch.cli.progress import Line
    from worldswitch.simulation.nx_fleet import follow

    line = Line()
    try:
        found = follow(
            place.kernel.has,
            loaded(place),
            fleet,
            mmu=mmu,
            intervals=intervals,
            say=lambda share: line.say(lambda: f"Linux {place.kernel}: {share:.0%}"),
        )
    finally:
        line.clear()
    return Followed(place, found)


def _text(one: Followed, cost: Atom) -> str:
    from worldswitch.report.line_chart import blocks
    from worldswitch.report.tables import table

    line = one.line
    rows = [
        [
            f"{each.end_ms / 3_600_000:.3g} h",
            f"{each.split:,.0f}",
            f"{share:.1%}",
            f"{each.executions:,}",
            f"{each.again:,}",
            f"{each.zapped:,}",
            each.pass_most,
            format_ns(mean) if each.passes else None,
            format_ns(most) if each.passes else None,
        ]
        for each, share, (mean, most) in zip(line.intervals, line.huge_share, line.spikes(cost), strict=True)
    ]
    columns = ["until", "split", "huge", "first", "again", "zapped", "most a pass", "a pass costs", "at most"]
    return (
        table(columns, rows, _title(one))
        + f"\nsplit   {blocks([each.split for each in line.intervals])}\n"
        + f"zapped  {blocks([each.zapped for each in line.intervals])}\n"
    )


def _title(one: Followed) -> str:
    line = one.line
    if line.period_ms is None:
        recovery = "no recovery" if line.parameters.mitigation else "no mitigation"
    else:
        waits = "faults wait" if line.stops_faults else "faults go on"
        recovery = f"1 in {line.parameters.ratio} recovered every {format_ns(line.period_ms * 1e6)}, {waits} meanwhile"
    return f"Linux {one.place.kernel}: {line.fleet.vms:,} VMs, {recovery}"


def _document(followed: Sequence[Followed], cost: Atom) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "fleet": asdict(followed[0].line.fleet),
        "zap_cost_ns": cost.mid,
        "zap_cost_origin": cost.origin,
        "intervals": [row for one in followed for row in _rows(one, cost)],
    }


def _rows(one: Followed, cost: Atom) -> list[dict[str, Any]]:
    line = one.line
    return [
        {
            "kernel": str(one.place.kernel),
            "period_ms": line.period_ms,
            **{name: round(getattr(each, name)) for name in _FIELDS},
            "huge_share": round(share, 6),
            "pass_mean_ns": round(mean),
            "pass_most_ns": round(most),
        }
        for each, share, (mean, most) in zip(line.intervals, line.huge_share, line.spikes(cost), strict=True)
    ]


def _csv(followed: Sequence[Followed], cost: Atom) -> str:
    rows = [row for one in followed for row in _rows(one, cost)]
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _picture(followed: Sequence[Followed]) -> str:
    from worldswitch.report.line_chart import Line, Panel, svg

    first = followed[0].line
    hours = [each.end_ms / 3_600_000 for each in first.intervals]
    if any(len(one.line.intervals) != len(hours) for one in followed):
        raise UsageError("a picture needs as many intervals of every kernel")
    names = [f"Linux {one.place.kernel}" for one in followed]
    shown: dict[str, list[list[float]]] = {
        "huge pages that are split": [[each.split for each in one.line.intervals] for one in followed],
        "zapped by recovery in each interval": [[each.zapped for each in one.line.intervals] for one in followed],
        "most zaps in one pass of one VM": [[each.pass_most for each in one.line.intervals] for one in followed],
    }
    panels = [
        Panel(title, [Line(name, values) for name, values in zip(names, lines, strict=True)])
        for title, lines in shown.items()
    ]
    return svg(f"NX huge pages of {first.fleet.vms:,} VMs", hours, "h", panels)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {printable(str(path))}: {printable(error.strerror or str(error))}") from error
