"""The ``wsw`` command. Each group of commands is a module that is imported only when it is called."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from worldswitch.errors import MissingError, WorldswitchError, printable

COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("analyze", "Say what the world switches in a trace cost, and why they happened."),
    "bundle": ("bundle", "Write one file that runs guest programs where there is nothing but python3."),
    "calibrate": ("calibrate", "Take what exits cost from measurements, for wsw run --on model --costs."),
    "compare": ("compare", "Say in what two results of wsw run differ: counts exactly, times with an interval."),
    "conform": ("conform", "Run random and shipped programs on the model and on real kernels: equal, or not."),
    "convert": ("convert", "Write a trace in another format."),
    "doctor": ("doctor", "Say what in a host's settings costs KVM, what to do, and how to undo it."),
    "fleet": ("fleet", "Work on many traces, snapshots or cells, on this machine or a Dask cluster."),
    "kernels": ("kernels", "List kernels and the facts about KVM in each, or how two differ."),
    "nx": ("nx", "Say what NX huge pages do on any kernel: parameters, splits, recovery over time."),
    "programs": ("programs", "List the guest and host programs that can be run."),
    "lab": ("lab", "Run real kernels with real KVM inside an emulator."),
    "record": ("record", "Record the KVM events that the other commands need."),
    "report": ("report", "Write a page, one HTML file, about traces, results, hosts and conformance."),
    "rules": ("rules", "List the rules of KVM, each with its source."),
    "run": ("run", "Run guest programs and say what their world switches were."),
    "tables": ("tables", "Show published measurements beside the model and its errors."),
    "top": ("top", "Show the exits of every VM of this host, live."),
    "whatif": ("whatif", "Say what another kernel or setting would save."),
}
"""Command -> the module of this package it lives in, and one line of help."""

DONE, FOUND, USAGE, MISSING, UNSTABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit statuses."""


class Commands(click.Group):
    """A group that imports a command's module when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"worldswitch.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"no such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from worldswitch import __version__
    from worldswitch.trace import pairing

    compiled = "compiled" if not str(pairing.__file__).endswith(".py") else "not compiled: slow, install a C compiler"
    click.echo(f"wsw {__version__} ({compiled})")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def wsw() -> None:
    """World switches of KVM guests: what they cost, why they happen, and what would remove them."""


def main(args: list[str] | None = None) -> None:
    """Run ``wsw`` and exit with its status."""
    _start_fast()
    # A terminal of another encoding gets a ? for each sign it lacks, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    stdout = sys.stdout
    try:
        status = wsw.main(args, prog_name="wsw", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        status = done.exit_code
    except click.ClickException as wrong:
        wrong.show()
        status = USAGE
    except MissingError as missing:
        status = _fail(missing, MISSING)
    except WorldswitchError as error:
        status = _fail(error, USAGE)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except BrokenPipeError:
        status = _reader_gone()
    except SystemExit:
        # Of click, when it meets a broken pipe before we do; it puts something harmless in stdout's place.
        if sys.stdout is stdout:
            raise
        status = _reader_gone()
    except OSError as error:
        _reader_gone()
        status = _fail(f"cannot read or write: {printable(error.strerror or str(error))}", MISSING)
    except RecursionError:
        status = _fail("the input nests too deeply", USAGE)
    except MemoryError:
        status = _fail("not enough memory for this input", MISSING)
    sys.exit(status if isinstance(status, int) else DONE)


def _reader_gone() -> int:
    """The reader of our output has gone; it has all it wanted."""
    import os

    # What Python flushes at its end must go somewhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return DONE


def _interrupted() -> NoReturn:
    """End at once: the decoding thread may hang in a read, which would not let the interpreter end."""
    import os

    click.echo("wsw: interrupted", err=True)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(INTERRUPTED)


def _start_fast() -> None:
    """What a short-lived process does not need: BLAS threads, and looking for garbage in what was just imported."""
    import gc
    import os

    gc.set_threshold(100_000, 50, 50)
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    _keep_memory()
    # A thread that comes out of a compiled loop should get the GIL at once: its Python part is a few microseconds.
    sys.setswitchinterval(5e-6)


def _keep_memory() -> None:
    """Keep freed memory for the next batch's arrays: glibc gives it back, and the kernel zeroes it, at each batch."""
    import ctypes

    trim_threshold, mmap_threshold, size = -1, -3, 256 << 20
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    mallopt(trim_threshold, size)
    mallopt(mmap_threshold, 32 << 20)


def _fail(error: object, status: int) -> int:
    click.echo(f"wsw: {error}", err=True)
    return status
