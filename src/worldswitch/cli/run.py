"""``wsw run``: guest and host programs, on the machines there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from worldswitch.cli import (
    DONE,
    FOUND,
    INTERRUPTED,
    MISSING,
    UNSTABLE,
    USAGE,
    conditions,
    cost_sets,
    options,
    run_python,
)
from worldswitch.cli.machines import Machine, machines
from worldswitch.cli.termination import ended_politely
from worldswitch.cli.work import prepare
from worldswitch.errors import MissingError, UsageError, WorldswitchError, printable
from worldswitch.kit.running import Failure, Say, Settings, Told, Work, settings_of
from worldswitch.kit.words import LARGEST_N, MOST_RUNS

if TYPE_CHECKING:
    from worldswitch.cli.conditions import Conditions
    from worldswitch.record.result import Cell, Result
    from worldswitch.stats.compare import Comparison


class _Remembering(click.Command):
    """Keeps the words it was called with, to call itself again under a recorder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["words"] = tuple(args)
        return super().parse_args(ctx, args)


@dataclass(slots=True)
class _Outcome:
    """What has finished so far, and what went wrong."""

    cells: list[Cell] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False

    @property
    def status(self) -> int:
        if self.interrupted:
            return INTERRUPTED
        if self.failures:
            return MISSING if isinstance(self.failures[0].error, MissingError) else USAGE
        return DONE if all(cell.steady for cell in self.cells) else UNSTABLE


@click.command(cls=_Remembering)
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM[:KEY=VALUE,...]|FILE.toml...")
@click.option(
    "--on",
    default="kvm",
    metavar="MACHINE,...",
    help="Where to run: kvm is this host's, lab an emulator, model the executable KVM.  [default: kvm]",
)
@click.option("-n", type=click.IntRange(1, LARGEST_N), help="Units to time, such as pairs.  [default: the program's]")
@click.option("--repeat", type=click.IntRange(0, MOST_RUNS), help="Timed runs; 0 only counts.  [default: 6; lab 0]")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=VALUE", help="cpuid.FEATURE=0|1; lab, model: nx_huge_pages=never, ..."
)
@click.option("--compare", metavar="A,B", help="Two kernels, or NAME=VALUE,NAME=VALUE: run both in turns; a verdict.")
@click.option("--junit", metavar="FILE", help="With --compare: write the verdicts as JUnit XML too.")
@click.option("--deadline", metavar="DURATION", help="Stop a guest that runs longer.  [default: 10s]")
@click.option("--save", metavar="FILE", help="Keep the results, for wsw compare.")
@click.option("--trace", "output", metavar="OUT", help="Record KVM's events too; the ending tells the format.")
@click.option("--vms", type=click.IntRange(0, 100_000), help="create-vm: idle VMs that are there already.")
@click.option("--burst", type=click.IntRange(1, 10_000), help="create-vm: VMs made at once.")
@click.option("--workers", type=click.Choice(("threads", "processes")), help="create-vm: what makes them.")
@click.option("--first-run", is_flag=True, help="create-vm: time the first KVM_RUN of each too.")
@click.option("--cgroup", metavar="PATH", help="create-vm: make them in this cgroup.")
@conditions.options
@options.as_json
@options.as_markdown
@options.as_python
@click.pass_context
def run(
    ctx: click.Context,
    /,
    programs: tuple[str, ...],
    on: str,
    n: int | None,
    repeat: int | None,
    sets: tuple[str, ...],
    deadline: str | None,
    compare: str | None,
    junit: str | None,
    save: str | None,
    output: str | None,
    as_json: bool,
    as_python: bool,
    **rest: Any,
) -> int:
    """Run guest programs and say what their world switches were: exits by reason, time, faults, for each unit.

    A program is one that ships (wsw programs lists them), a TOML file, or create-vm, for which no guest runs. Several
    are separated by commas or spaces. Exits and time are those of the program alone: a run with n=0 is subtracted.
    """
    asked = conditions.take(rest, sets, on, output)
    work = prepare(programs)
    where = [word.strip() for word in on.split(",")]
    settings = settings_of(work, n, repeat, conditions.features(sets), deadline, rest, where)
    if compare is not None:
        if output is not None:
            raise UsageError("--trace records one run and --compare runs many; leave one of them out")
        return _compare(compare, on, work, settings, asked, ctx.meta["words"], (save, junit), as_json, as_python)
    if junit is not None:
        raise UsageError("--junit writes verdicts, and only --compare gives some")
    if as_python:
        click.echo(run_python.here(work, settings) if on == "kvm" else run_python.on(on, work, settings, asked))
        return DONE
    chosen = machines(on, asked)
    _check_writable(save)
    if output is not None and len(chosen) > 1:
        raise UsageError("--trace records on one machine; name one after --on")
    if output is not None and chosen[0][0] == "kvm":
        from worldswitch.cli.traced import run_traced

        return run_traced(["run", *_without_trace(ctx.meta["words"])], output)
    started = _now()
    with ended_politely():
        done = _run(chosen, work, settings)
        result = _result(done, chosen, ("wsw", "run", *ctx.meta["words"]), settings, asked, started)
        try:
            if save is not None and done.cells:
                from worldswitch.record.resultfile import save as keep

                keep(result, save)
        finally:
            _show(result, done, as_json)
    return done.status


def _compare(
    text: str,
    on: str,
    work: Sequence[Work],
    settings: Settings,
    asked: Conditions,
    words: tuple[str, ...],
    files: tuple[str | None, str | None],
    as_json: bool,
    as_python: bool,
) -> int:
    """Run under two conditions in turns; *files* are those for the results and for the verdicts as JUnit XML."""
    from worldswitch.cli import ab

    if as_python:
        click.echo(ab.python(text, on, [one.spec for one in work], *run_python.calls(asked, settings)))
        return DONE
    save, junit = files
    chosen = ab.plan(text, on, asked, settings)
    _check_writable(save)
    _check_writable(junit, "--junit")
    _check_apart(save, junit)
    started = _now()
    with ended_politely():
        done = _Outcome()
        _finish(done, on, _alone(work, [on]), lambda say: ab.run(chosen, work, say))
        result = _result(
            done, [(on, chosen.machines[0])], ("wsw", "run", *words), settings, asked, started, ab.parameters(chosen)
        )
        found = ab.compared(result, chosen.sides[0].name) if len(done.cells) > 1 else None
        if save is not None and done.cells:
            from worldswitch.record.resultfile import save as keep

            keep(result, save)
        if found is None or done.interrupted:
            _show(result, done, as_json)
            return done.status
        return _show_compared(result, found, done, as_json, junit)


def _show_compared(result: Result, found: Comparison, done: _Outcome, as_json: bool, junit: str | None) -> int:
    from worldswitch.cli.compare import show, write_junit
    from worldswitch.cli.compare_text import to_json

    if as_json:
        failures = [{"program": one.spec, "error": str(one.error)} for one in done.failures]
        options.print_json({**result.to_run_json(), "comparison": to_json(found), "failures": failures})
        status = FOUND if found.worse else DONE
    else:
        from worldswitch.cli.run_text import notes
        from worldswitch.report.tables import paragraphs

        status = show(found, False)
        if known := paragraphs("What to know", notes(result.cells)):
            click.echo(f"\n{known}", nl=False)
    if junit is not None:
        write_junit(found, junit)
    return done.status if done.failures else status


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_writable(name: str | None, option: str = "--save") -> None:
    """Refuse a name for the results before anything has run that could be lost."""
    import os
    from pathlib import Path

    if name is None:
        return
    path = Path(name)
    if path.is_dir() or not path.name:
        raise UsageError(f"{printable(name)!r} is a folder; give {option} the name of a file")
    if not path.parent.is_dir():
        raise MissingError(f"the folder {printable(str(path.parent))!r} does not exist; make it, or {option} elsewhere")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise MissingError(f"this user may not write {printable(name)!r}; give {option} another name")


def _check_apart(save: str | None, junit: str | None) -> None:
    """Refuse one name for both files, as the second would be all that is left."""
    from pathlib import Path

    if save is not None and junit is not None and Path(save).resolve() == Path(junit).resolve():
        raise UsageError("--save and --junit name the same file; give each its own")


def _run(chosen: Sequence[tuple[str, Machine]], work: Sequence[Work], settings: Settings) -> _Outcome:
    alone = _alone(work, [name for name, _ in chosen])
    done = _Outcome()
    for name, machine in chosen:
        if not done.interrupted:
            _finish(done, name, alone, partial(machine.run, work, settings))
    return done


def _alone(work: Sequence[Work], machines: Sequence[str]) -> tuple[str, ...]:
    """What needs no name in an error, as nothing else was asked for."""
    return (work[0].spec, *machines) if len(work) == 1 else ()


def _finish(done: _Outcome, name: str, alone: Collection[str], run: Callable[[Say], Iterator[Cell | Failure]]) -> None:
    """Add to *done* what *run* gives on the machine *name*."""
    from worldswitch.cli.progress import Line

    line = Line()

    def say(text: str) -> None:
        if isinstance(text, Told):
            line.tell(text)
        else:
            line.say(lambda: text)

    def failed(spec: str, error: WorldswitchError) -> None:
        line.clear()
        click.echo(f"wsw: {error}" if spec in alone else f"wsw: {printable(spec)}: {error}", err=True)
        done.failures.append(Failure(spec, error))

    try:
        for one in run(say):
            if isinstance(one, Failure):
                failed(*one)
            else:
                done.cells.append(one)
    except WorldswitchError as error:
        failed(name, error)
    except KeyboardInterrupt:
        done.interrupted = True
    finally:
        line.clear()


def _result(
    done: _Outcome,
    chosen: Sequence[tuple[str, Machine]],
    argv: tuple[str, ...],
    settings: Settings,
    asked: Conditions,
    started: str,
    more: Mapping[str, Any] | None = None,
) -> Result:
    from dataclasses import asdict

    from worldswitch import __version__
    from worldswitch.record.result import Environment, Provenance, Result

    parameters = {**asdict(settings), **asked.document(), **(more or {})}
    provenance = Provenance(__version__, argv, parameters, None, started, _now(), cost_sets.origins(asked.costs))
    environment = chosen[0][1].environment() if len(chosen) == 1 else Environment()
    return Result(tuple(done.cells), provenance, environment)


def _show(result: Result, done: _Outcome, as_json: bool) -> None:
    if as_json:
        failures = [{"program": one.spec, "error": str(one.error)} for one in done.failures]
        options.print_json({**result.to_run_json(), **_access(result), "failures": failures})
    elif result.cells:
        from worldswitch.cli.run_text import text

        click.echo(text(result), nl=False)
    if done.interrupted:
        click.echo("wsw: interrupted; what was finished is shown" if result.cells else "wsw: interrupted", err=True)
    elif done.status == UNSTABLE:
        shaky = [str(cell.dimensions.get("program")) for cell in done.cells if not cell.steady]
        click.echo(f"wsw: measured, but not stable: {printable(', '.join(shaky))}; see the notes", err=True)


def _access(result: Result) -> dict[str, Any]:
    """The verdicts on the cases of the program access, if it was run."""
    from worldswitch.cli.access_text import access_document, is_access

    found = [access_document(cell) for cell in result.cells if is_access(cell)]
    return {"access": found} if found else {}


def _without_trace(words: Sequence[str]) -> list[str]:
    """The words without --trace and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "--trace":
            skip = True
        elif not word.startswith("--trace="):
            kept.append(word)
    return kept
