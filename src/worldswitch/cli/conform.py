"""``wsw conform``: random and shipped programs on the model and on real kernels, equal or a named difference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import DONE, FOUND, INTERRUPTED, MISSING, options
from worldswitch.cli.conditions import CPUS, MMUS, Conditions, words
from worldswitch.cli.side_by_side import Say, side_by_side
from worldswitch.cli.termination import ended_politely
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable

if TYPE_CHECKING:
    from worldswitch.cli.lab_spots import Spot
    from worldswitch.conform.session import Outcome, Plan
    from worldswitch.guest.program import Program

_DEFAULT_MMUS = ("default", "shadow")


@click.command()
@click.option("--programs", type=click.IntRange(0, 1_000_000), default=200, show_default=True, help="Random programs.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of the programs.")
@click.option("--first", type=click.IntRange(0), default=0, help="Number of the first random program.  [default: 0]")
@click.option("--only", metavar="N,...", help="Only the random programs of these numbers, and no shipped ones.")
@click.option("--show", type=click.IntRange(0), metavar="N", help="Print random program N as TOML and run nothing.")
@click.option("--kernel", metavar="K,...", help="Kernels of the lab.  [default: all that are fetched]")
@click.option("--cpu", metavar="CPU,...", help=f"{' or '.join(CPUS)}.  [default: both]")
@click.option("--mmu", metavar="MMU,...", help=f"Of {', '.join(MMUS)}.  [default: {','.join(_DEFAULT_MMUS)}]")
@click.option("--shipped/--no-shipped", default=True, help="Run the shipped programs too.  [default: they are run]")
@click.option("--shrink", type=click.IntRange(0, 100), default=3, show_default=True, help="Differences made smaller.")
@click.option("--programs-to", metavar="DIR", type=click.Path(path_type=Path), default=".", help="For their programs.")
@click.option("-j", "--jobs", type=click.IntRange(1, 256), default=2, show_default=True, help="Machines at once.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Add the rows to this table.")
@click.option("--table", metavar="FILE", type=click.Path(path_type=Path), help="Print a table and run nothing.")
@options.as_json
@options.as_markdown
@options.as_python
def conform(as_json: bool, as_python: bool, **given: Any) -> int:
    """Run programs on the model and on real KVM in the lab: equal, or a named difference.

    Random programs by a seed, and all that ship, many in each start of a machine. Compared are what the guest sees
    (values, faults, retries, memory) and exits by reason. Status 1 is a difference that nobody has named.
    """
    from worldswitch.conform.session import Plan

    if given["table"] is not None:
        return _print_table(given["table"], as_json)
    spots = _spots(given)
    only = tuple(_number(word) for word in words("only", given["only"]))
    shipped = _shipped() if given["shipped"] and not only else ()
    plan = Plan(given["programs"], given["seed"], given["first"], only, shipped, given["shrink"])
    if as_python:
        click.echo(_python(plan, spots[0]))
        return DONE
    if given["show"] is not None:
        click.echo(str(_random(plan, spots[0], given["show"])), nl=False)
        return DONE
    if not given["programs_to"].is_dir():
        raise MissingError(f"the folder {printable(str(given['programs_to']))!r} does not exist; make it")
    _check_table(given["output"])
    return _run(plan, spots, given, as_json)


def _run(plan: Plan, spots: Sequence[Spot], given: dict[str, Any], as_json: bool) -> int:
    from worldswitch.cli import conform_text as text
    from worldswitch.cli.progress import Line
    from worldswitch.conform import table

    line, done, interrupted = Line(), [], False
    tasks = [partial(_on_spot, plan, spot) for spot in spots]
    with ended_politely():
        try:
            for found in side_by_side(tasks, given["jobs"], lambda said: line.say(lambda: said)):
                line.clear()
                done.append(found)
                _report(plan, found, given["programs_to"], text, as_json)
                if given["output"] is not None and found.ran:
                    table.save([table.row(found, plan)], given["output"])
                interrupted = interrupted or found.interrupted
                if found.interrupted:
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            line.clear()
    rows = [table.row(one, plan) for one in done]
    if as_json:
        options.print_json(text.document(plan, done, rows))
    elif rows:
        click.echo(text.text(plan, done, rows), nl=False)
    if interrupted:
        click.echo("wsw: interrupted; what was finished is shown" if rows else "wsw: interrupted", err=True)
        return INTERRUPTED
    if any(one.unexplained for one in done):
        return FOUND
    return MISSING if any(one.missing or one.failed for one in done) else DONE


def _on_spot(plan: Plan, spot: Spot, say: Say) -> Outcome:
    """Run the plan on one machine; what is missing for it is in the outcome."""
    from worldswitch.cli.lab_kit import lab_kit
    from worldswitch.conform.session import Outcome
    from worldswitch.conform.session import conform as conform_on
    from worldswitch.lab.emulator import emulator

    place = spot.place
    try:
        machine = spot.machine((), lab_kit())
        chosen = emulator(place.cpu, machine.kernel.release)
        return conform_on(plan, machine, place.mmu, str(getattr(chosen, "model", "")), say)
    except WorldswitchError as error:
        return Outcome(place.kernel, place.cpu, place.mmu, missing=True, why=str(error).splitlines()[0])


def _report(plan: Plan, found: Outcome, folder: Path, text: Any, as_json: bool) -> None:
    """Write the program of each difference, and say what it is."""
    for number, one in enumerate(found.unexplained):
        path = folder / f"conform-{found.kernel}-{found.cpu}-{found.mmu}-{one.name.replace(':', '-')}.toml"
        if one.minimal is not None or number < plan.minimize:
            path.write_text(str(one.minimal or one.program), encoding="utf-8")
        if not as_json:
            click.echo(text.difference(found, one, path if path.exists() else None), nl=False)
    if found.missing:
        click.echo(f"wsw: {printable(found.kernel)} {found.cpu} {found.mmu}: {found.why}", err=True)


def _spots(given: dict[str, Any]) -> list[Spot]:
    from worldswitch.cli.lab_spots import spots
    from worldswitch.lab import cache

    kernels = words("kernel", given["kernel"])
    if not kernels:
        kernels = tuple(str(entry.about["version"]) for entry in cache.entries("kernels"))
    if not kernels:
        raise MissingError("no kernel is fetched; wsw lab fetch 5.10 6.1 6.12 7.2 gets those that are compared here")
    cpus = words("cpu", given["cpu"], CPUS) or CPUS
    mmus = words("mmu", given["mmu"], MMUS) or _DEFAULT_MMUS
    return list(spots(Conditions(kernels, cpus, mmus)))


def _shipped() -> tuple[str, ...]:
    from worldswitch.guest import library

    return tuple(library.names())


def _number(word: str) -> int:
    if not (word.isascii() and word.isdecimal()):
        raise UsageError(f"--only {printable(word)!r} is not the number of a program")
    return int(word)


def _random(plan: Plan, spot: Spot, number: int) -> Program:
    from worldswitch.conform.generate import program
    from worldswitch.conform.session import features_of
    from worldswitch.kvm.policy import Policy
    from worldswitch.lab.emulator import emulator

    machine = _bare_machine(spot)
    policy = Policy.of(machine.version, spot.place.cpu, spot.place.mmu, [])
    model = str(getattr(emulator(spot.place.cpu, machine.release), "model", ""))
    return program(plan.seed, number, features_of(policy, model))


def _bare_machine(spot: Spot) -> Any:
    from worldswitch.lab import artifacts

    return artifacts.kernel_for(spot.place.kernel, None)


def _check_table(path: Path | None) -> None:
    """Refuse a table that could not be written, before anything has run."""
    import os

    from worldswitch.conform import table

    if path is None:
        return
    if path.exists():
        table.load(path)
    elif not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise MissingError(f"{printable(str(path))!r} cannot be written; give -o the name of a file that can")


def _print_table(path: Path, as_json: bool) -> int:
    from worldswitch.conform import table

    rows = table.load(path)
    if as_json:
        options.print_json({"rows": rows})
    else:
        click.echo(table.markdown(rows), nl=False)
    return DONE


def _python(plan: Plan, spot: Spot) -> str:
    place = spot.place
    return "\n".join(
        [
            "from worldswitch.cli.lab_kit import lab_kit",
            "from worldswitch.conform.session import Plan, conform",
            "from worldswitch.lab import artifacts, settings",
            "from worldswitch.lab.emulator import emulator",
            "from worldswitch.lab.machine import Machine",
            "",
            f"kernel = artifacts.kernel({place.kernel!r})",
            f"chosen = settings.paging({place.mmu!r}, {place.cpu!r}, {{}})",
            f"machine = Machine(kernel, {place.cpu!r}, chosen, kit=lab_kit())",
            f"model = emulator({place.cpu!r}, kernel.release).model",
            f"found = conform({plan!r}, machine, {place.mmu!r}, model, print)",
            "print(found.ran, found.equal, found.unexplained)",
        ]
    )
