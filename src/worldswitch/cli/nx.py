"""``wsw nx``: the iTLB multihit mitigation as KVM's parameters show it, on this host and on any kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from worldswitch.cli import options
from worldswitch.cli.nx_places import SHORT, Place, loaded, parameter, place_options, places, python
from worldswitch.cli.nx_timeline import timeline
from worldswitch.errors import UsageError, printable

if TYPE_CHECKING:
    from worldswitch.kvm.nx import Written

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


class Step(NamedTuple):
    """One thing done to a kernel's parameters.

    Attributes:
        shown: As it was asked for.
        name: Parameter written; empty where a VM came or went.
        text: What was written.
        vms: VMs there were.
        written: What it did.
        reads: What the parameter read after it; None where the kernel has no such parameter.
    """

    shown: str
    name: str
    text: bytes
    vms: int
    written: Written
    reads: str | None


@click.group()
def nx() -> None:
    """NX huge pages: what the iTLB multihit mitigation does, on any kernel."""


@nx.command()
@place_options
@options.as_json
@options.as_python
def show(as_json: bool, as_python: bool, **given: Any) -> int:
    """Show the mitigation on this host, or on the kernels named, and what it means.

    Nothing is ever written.
    """
    if given["kernel"] is None:
        others = [name for name in ("multihit", "mitigations_off", "realtime", "sets") if given[name]]
        if others:
            raise UsageError("this host is as it is; name a kernel, such as --kernel 6.12, to say what it would do")
        return _show_host(as_json, as_python)
    chosen = places(**given)
    if as_python:
        click.echo(python(chosen[0], [f"print(nx.read(has, state, nx.{name}))" for name in ("SWITCH", "RATIO")]))
        return 0
    rows = [_shown(place) for place in chosen]
    if as_json:
        options.print_json({"kernels": rows})
        return 0
    from worldswitch.report.tables import table

    keys = ("kernel", "nx_huge_pages", "splits", "recovery", "vCPUs wait", "opt-out", "itlb_multihit reads")
    cells = [
        [
            row["kernel"],
            row["nx_huge_pages"],
            _yes(row["splits"]),
            _recovery(row["ratio"], row["recovery_period_ms"]),
            _yes(row["recovery_stops_faults"]) if row["recovery_period_ms"] else "-",
            _yes(row["opt_out"]),
            row["itlb_multihit"],
        ]
        for row in rows
    ]
    click.echo(table(keys, cells, left=["kernel", "nx_huge_pages", "recovery", "itlb_multihit reads"]), nl=False)
    return 0


def _shown(place: Place) -> dict[str, Any]:
    from worldswitch.kvm import nx
    from worldswitch.kvm.nx_recovery import stops_faults

    has, state = place.kernel.has, loaded(place)
    return {
        "kernel": str(place.kernel),
        "nx_huge_pages": nx.read(has, state, nx.SWITCH),
        "splits": nx.splits(state),
        "ratio": state.ratio,
        "period_ms": state.period_ms if has(nx.NEEDS[nx.PERIOD]) else None,
        "recovery_period_ms": nx.recovery_period(has, state),
        "recovery_stops_faults": stops_faults(has, "tdp"),
        "opt_out": not nx.opt_out(has),
        "itlb_multihit": nx.vulnerability(place.host, state.mitigation),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _recovery(ratio: int, period_ms: int | None) -> str:
    if period_ms is None:
        return "none"
    from worldswitch.units import format_ns

    return f"1 in {ratio} every {format_ns(period_ms * 1e6)}"


def _show_host(as_json: bool, as_python: bool) -> int:
    if as_python:
        click.echo("from worldswitch.live.module import parameters\n\nprint(parameters())")
        return 0
    found = _host()
    if as_json:
        options.print_json(found)
        return 0
    from worldswitch.report.tables import fields

    click.echo(fields([("kernel", found["kernel"]), *found["parameters"].items()]), nl=False)
    click.echo(fields([("itlb_multihit", found["itlb_multihit"]), ("recovery", found["recovery"])]), nl=False)
    for note in found["notes"]:
        click.echo(f"Note: {note}.")
    return 0


def _host() -> dict[str, Any]:
    """What this host's files say, and what follows from them.

    Raises:
        MissingError: KVM is not loaded, or has no such parameter.
    """
    from worldswitch.errors import MissingError
    from worldswitch.kvm import nx
    from worldswitch.live.module import parameters
    from worldswitch.live.permissions import ROOT, read

    values = parameters()
    found = {name: values[f"kvm.{name}"] for name in nx.NEEDS if f"kvm.{name}" in values}
    if nx.SWITCH not in found:
        raise MissingError("this host has no /sys/module/kvm/parameters/nx_huge_pages: KVM is not loaded, or too old")
    # Which files there are says which facts hold; the rest of the kernel does not matter here.
    has = {fact: name in found for name, fact in nx.NEEDS.items()}.__getitem__
    shown = found[nx.SWITCH]
    ratio, period = (found.get(name, "0") for name in (nx.RATIO, nx.PERIOD))
    if not (ratio.isdecimal() and period.isdecimal()):
        raise MissingError(f"the recovery parameters of this host read {printable(ratio)} and {printable(period)}")
    state = nx.Parameters(shown == "Y", shown == "never", int(ratio), int(period))
    vulnerable = read(ROOT / "sys/devices/system/cpu/vulnerabilities/itlb_multihit")
    notes = {
        "Y": "force or auto was written, or nothing: reading cannot tell which",
        "N": "off or auto was written, or nothing: reading cannot tell which",
        "never": "nothing can be written until kvm.ko is loaded anew, and VMs get no recovery thread",
    }
    return {
        "kernel": os.uname().release,
        "parameters": found,
        "splits": nx.splits(state),
        "recovery_period_ms": nx.recovery_period(has, state),
        "recovery": _recovery(state.ratio, nx.recovery_period(has, state)),
        "itlb_multihit": vulnerable,
        "notes": [notes[shown]] if shown in notes else [],
    }


@nx.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, metavar="VALUE...")
@place_options
@click.option("--vms", type=click.IntRange(0), default=0, show_default=True, help="VMs that exist.")
@click.option("--each", is_flag=True, help="Load kvm.ko anew before each.")
@click.option("-e", "escapes", is_flag=True, help=r"Take \n, \t, \0, \\ and \xHH in values for what they stand for.")
@options.as_json
@options.as_python
def write(
    words: tuple[str, ...], vms: int, each: bool, escapes: bool, as_json: bool, as_python: bool, **given: Any
) -> int:
    """Say what writing each VALUE in turn to nx_huge_pages would do. No file of this host is written.

    NAME=VALUE writes another parameter: ratio=0, period_ms=100. vm+ and vm- create and destroy a VM in between.
    """
    chosen = places(**given)
    if as_python:
        name, text = _target(words[0], escapes) or ("nx_huge_pages", b"")
        call = f"done = nx.write(has, host, state, {name!r}, {text!r}, vms={vms})"
        click.echo(python(chosen[0], [call, f"print(done, nx.read(has, done.state, {name!r}))"]))
        return 0
    results = [(place, steps(place, words, vms, escapes, each)) for place in chosen]
    if as_json:
        options.print_json({"writes": [_document(place, step) for place, done in results for step in done]})
    else:
        click.echo(_matrix(results) if len(results) > 1 else _detail(*results[0]), nl=False)
    return 0


def steps(place: Place, words: Sequence[str], vms: int, escapes: bool, each: bool = False) -> list[Step]:
    """What each word does to a kvm.ko that was just loaded: one for all words, or one for *each*.

    Raises:
        UsageError: A VM is destroyed that does not exist, or an escape is none.
    """
    from worldswitch.kvm import nx

    has, state = place.kernel.has, loaded(place)
    done = []
    for word in words:
        target = _target(word, escapes)
        state = loaded(place) if each else state
        if target is None:
            vms += 1 if word == "vm+" else -1
            if vms < 0:
                raise UsageError("vm- destroys a VM, but there is none; say --vms 1 or vm+ before it")
            written, name, text = nx.Written(state), "", b""
        else:
            name, text = target
            written = nx.write(has, place.host, state, name, text, vms)
        state = written.state
        reads = nx.read(has, state, name) if name and has(nx.NEEDS[name]) else None
        done.append(Step(word, name, text, vms, written, reads))
    return done


def _target(word: str, escapes: bool) -> tuple[str, bytes] | None:
    """Parameter and text of a word; None if it is about a VM."""
    if word in ("vm+", "vm-"):
        return None
    name, equals, value = word.partition("=")
    known = equals and (name in SHORT or name.startswith("nx_huge"))
    target = (parameter(name), os.fsencode(value)) if known else ("nx_huge_pages", os.fsencode(word))
    return (target[0], _ESCAPE.sub(_unescape, target[1])) if escapes else target


def _unescape(found: re.Match[bytes]) -> bytes:
    sign = found[1]
    if len(sign) == 3:
        return bytes([int(sign[1:], 16)])
    if sign not in _ESCAPED:
        raise UsageError(f"\\{printable(sign.decode('latin-1'))} is no escape; there are \\n, \\t, \\0, \\\\ and \\xHH")
    return _ESCAPED[sign]


def _matrix(results: Sequence[tuple[Place, list[Step]]]) -> str:
    from worldswitch.report.tables import table

    columns = [str(place.kernel) for place, _ in results]
    rows = [
        [_quoted(row[0].shown), *(step.written.error or step.reads or "" for step in row)]
        for row in zip(*(done for _, done in results), strict=True)
    ]
    text = table(["write", *columns], rows, left=["write"])
    return f"{text}\nWhat the parameter reads after the write, or the error of the write.\n"


def _quoted(word: str) -> str:
    """*word*, in quotes where its ends could not be seen without."""
    return word if word and word == word.strip() else f"'{word}'"


def _detail(place: Place, done: Sequence[Step]) -> str:
    from worldswitch.kvm import nx
    from worldswitch.report.tables import table

    rows = []
    for step in done:
        state = step.written.state
        effects = [
            "drops all page tables" if step.written.zaps else "",
            "wakes recovery" if step.written.wakes else "",
        ]
        rows.append(
            [
                _quoted(step.shown),
                "" if not step.name else step.written.error or "ok",
                step.reads or "",
                _yes(nx.splits(state)),
                _recovery(state.ratio, nx.recovery_period(place.kernel.has, state)),
                step.vms,
                ", ".join(filter(None, effects)) if step.vms else "",
            ]
        )
    columns = ["write", "result", "reads", "splits", "recovery", "VMs", "each VM"]
    return table(columns, rows, f"Linux {place.kernel}", left=["write", "result", "reads", "recovery", "each VM"])


def _document(place: Place, step: Step) -> dict[str, Any]:
    from worldswitch.kvm import nx

    state = step.written.state
    return {
        "kernel": str(place.kernel),
        "write": step.shown,
        "parameter": step.name or None,
        "text": step.text.decode("latin-1"),
        "vms": step.vms,
        "error": step.written.error or None,
        "reads": step.reads,
        "splits": nx.splits(state),
        "never": state.never,
        "ratio": state.ratio,
        "period_ms": state.period_ms,
        "recovery_period_ms": nx.recovery_period(place.kernel.has, state),
        "zaps": step.written.zaps,
        "wakes": step.written.wakes,
    }


nx.add_command(timeline)
