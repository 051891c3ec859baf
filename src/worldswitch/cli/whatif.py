"""``wsw whatif``: what another kernel or setting would save in a trace."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import options
from worldswitch.errors import UsageError

if TYPE_CHECKING:
    from worldswitch.trace.whatif import Exits, Reloads, WhatIf


@click.command()
@click.argument("trace")
@click.option("--from", "from_", metavar="KERNEL", help="The trace's kernel, where its file does not name it.")
@click.option("--to", metavar="KERNEL[+FACT]", help="The kernel asked about, such as 6.12 or 6.2.0+cr0-wp-owned.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting there, such as kvm_intel.ept=0."
)
@options.as_json
@options.as_markdown
@options.as_python
def whatif(
    trace: str, from_: str | None, to: str | None, settings: tuple[str, ...], as_json: bool, as_python: bool
) -> int:
    """Say which exits of TRACE another kernel or setting would not have had, and what they took."""
    if to is None and not settings:
        raise UsageError("say what to compare with: --to KERNEL, --set NAME=VALUE, or both")
    if as_python:
        click.echo("from worldswitch.trace import open_source\nfrom worldswitch.trace.whatif import whatif")
        click.echo(f"result = whatif(open_source({trace!r}), to={to!r}, from_={from_!r}, settings={list(settings)!r})")
        click.echo("print(result.removed, result.saving_ns, result.cannot_tell)")
        return 0
    from worldswitch.cli.progress import watched
    from worldswitch.trace.readers import open_source
    from worldswitch.trace.whatif import whatif as ask

    result = ask(watched(open_source(trace), trace), to, from_, settings)
    if as_json:
        options.print_json(to_json(result))
    else:
        click.echo(describe(result), nl=False)
    return 0


def to_json(result: WhatIf) -> dict[str, Any]:
    """The JSON document of one answer."""
    return {
        "assumed_from": result.assumed_from,
        "from": {
            "kernel": str(result.before.kernel),
            "how": result.source.how,
            "mmu": str(result.before.mmu),
        },
        "to": {
            "kernel": str(result.after.kernel),
            "mmu": str(result.after.mmu),
            "cpu": str(result.after.vendor),
        },
        "exits": {"count": result.exits, "total_ns": result.total_ns},
        "removed": [asdict(exits) for exits in result.removed],
        "stays": [asdict(exits) for exits in result.stays],
        "saving_ns": {name: round(value) for name, value in result.saving_ns._asdict().items()},
        "inferred": result.inferred,
        "cannot_tell": [{"why": why} for why in result.cannot_tell],
        "notes": result.notes,
        "method": result.method,
        "method_why": result.method_why,
        "vms": [{"method": vm.method, **asdict(vm)} for vm in result.vms],
        "by_reason": {reason: {"from": here, "to": there} for reason, (here, there) in result.by_reason.items()},
        "roots": None if result.roots is None else dict(zip(("from", "to"), map(asdict, result.roots), strict=True)),
        "reloads": [asdict(reloads) for reloads in result.reloads],
    }


def describe(result: WhatIf) -> str:
    """The answer as text a person reads."""
    from worldswitch.report.tables import fields, paragraphs, table
    from worldswitch.trace.explain import many

    before, after = result.before, result.after
    assumed = " (assumed)" if result.assumed_from else ""
    gone = sum(exits.count for exits in result.removed)
    parts = [
        fields(
            (
                ("trace", result.meta.source),
                ("from", f"{before.kernel}{assumed}, {_NAMES[before.vendor]}, {_NAMES[before.mmu]}"),
                *_wrapped("", result.source.how),
                ("to", f"{after.kernel}, {_NAMES[after.vendor]}, {_NAMES[after.mmu]}"),
                ("removed", f"{gone:,} of {many(result.exits, 'exit')}"),
                ("saving", _saving(result) if gone else "none"),
            )
        )
    ]
    columns = ("exits", "what", "count", "time", "known", "why")
    left = ("exits", "what", "known", "why")
    for title, kinds in (("Would not have happened", result.removed), ("Stay", result.stays)):
        if kinds:
            parts.append(table(columns, [_row(exits) for exits in kinds[:_MOST]], title, left=left))
            if len(kinds) > _MOST:
                parts.append(f"... and {len(kinds) - _MOST:,} more kinds; --json has them all\n")
    parts += [
        paragraphs("Method", [_method(result), *_roots(result)]),
        paragraphs("Inferred", result.inferred[:_MOST]),
        paragraphs("Cannot tell", result.cannot_tell[:_MOST]),
        paragraphs("Notes", [*result.notes, *_terms(result)]),
    ]
    return "\n".join(part for part in parts if part)


_NAMES = {
    "intel": "Intel",
    "amd": "AMD",
    "tdp": "TDP MMU",
    "legacy": "legacy MMU (two-dimensional paging)",
    "shadow": "shadow paging",
}


def _method(result: WhatIf) -> str:
    """Which of the two methods was used, and why not replay where it was not."""
    if result.method == "facts":
        return f"facts: each write is judged by itself; not replayed, since {result.method_why}"
    text = (
        "replay: register writes and page faults, played by the rules of the trace's host, give the trace's own exits"
    )
    if not result.method_why:
        return text
    replayed = sum(vm.method == "replay" for vm in result.vms)
    return f"{text} in {replayed:,} of {len(result.vms):,} VMs; in the others facts, since {result.method_why}"


def _roots(result: WhatIf) -> list[str]:
    """The work on MMU roots."""
    if result.roots is None or not (result.roots[0].unloads or result.roots[1].unloads):
        return []
    here, there = (
        f"{work.unloads:,}" + (f" ({work.freed:,} of them freeing page tables)" if work.freed else "")
        for work in result.roots
    )
    sentence = f"MMU roots are unloaded {here} times in the trace, and {there} times on the host asked about"
    if result.roots[0].unloads > result.roots[1].unloads:
        sentence += "; what that took is part of the exits it was in, and not in the saving where these stay"
    return [sentence]


_MOST = 30
"""Rows and sentences shown of each kind."""


def _wrapped(name: str, text: str) -> list[tuple[str, str]]:
    """*text* as fields of one line each."""
    import textwrap

    lines = textwrap.wrap(text, 90)
    return [(name, line) for line in lines]


def _saving(result: WhatIf) -> str:
    from worldswitch.units import format_ns

    low, mid, high = (format_ns(value) for value in result.saving_ns)
    text = f"{mid} (95 %: {low} to {high})"
    if not result.total_ns:
        return text
    return f"{text}, {_percent(result.saving_ns.mid / result.total_ns)} of the time outside the guest"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.2g} %"


def _terms(result: WhatIf) -> list[str]:
    """What a newcomer needs to read the tables."""
    terms = []
    if result.removed:
        terms.append(
            "the saving is what the removed exits took from exit to entry, tracing included; the processor's own part "
            "of a world switch comes on top"
        )
    if any(exits.refault for exits in (*result.removed, *result.stays)):
        terms.append("a refault is a page fault on a page that was mapped before the register write")
    terms += [_reload(reloads) for reloads in result.reloads]
    return terms


def _reload(reloads: Reloads) -> str:
    """What the trace tells of the time that unloading roots takes."""
    from worldswitch.units import format_ns

    return (
        f"{reloads.reason} exits that unload MMU roots took {format_ns(reloads.unloading_ns)} in this trace "
        f"({reloads.unloading:,} of them), those that do not {format_ns(reloads.other_ns)} ({reloads.other:,}); medians"
    )


def _row(exits: Exits) -> tuple[Any, ...]:
    from worldswitch.units import format_ns

    bits = "" if exits.changed is None else "." + ("+".join(exits.changed) or "nothing")
    what = f"refault after {exits.register}{bits}" if exits.refault else f"{exits.register}{bits} write"
    known = "yes" if exits.known else "no" if exits.changed is None else "inferred"
    return exits.reason, what, f"{exits.count:,}", format_ns(exits.total_ns), known, exits.why
