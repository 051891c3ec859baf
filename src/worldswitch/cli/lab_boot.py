"""``wsw lab boot``, ``exec`` and ``command``: start a kernel of the lab, run something in it, or say how."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from worldswitch.cli import options
from worldswitch.errors import MissingError, UsageError, printable
from worldswitch.kit.words import seconds

if TYPE_CHECKING:
    from worldswitch.lab.artifacts import BuildFiles, KernelFiles
    from worldswitch.lab.jobs import JobResult
    from worldswitch.lab.machine import Machine, Start

F = TypeVar("F", bound=Callable[..., Any])
_HOLDS = {".dat": "trace-cmd", ".data": "perf", ".txt": "tracefs"}


def _machine_options(command: F) -> F:
    """What machine to start."""
    for decorator in reversed(
        (
            click.option("--kernel", metavar="K", help="A fetched kernel: 6.12, 6.1.190, a release."),
            click.option("--kernel-image", metavar="FILE", type=click.Path(path_type=Path), help="A bzImage instead."),
            click.option("--modules", metavar="DIR", type=click.Path(path_type=Path), help="Its modules."),
            click.option("--build", metavar="NAME", help="KVM's modules from wsw lab build."),
            click.option("--cpu", type=click.Choice(("amd", "intel")), default="amd", show_default=True),
            click.option("--mmu", type=click.Choice(("default", "tdp", "legacy", "shadow")), default="default"),
            click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A module parameter; repeatable."),
            click.option("--smp", type=click.IntRange(1, 64), default=1, help="CPUs of the machine.  [default: 1]"),
            click.option("--memory", type=click.IntRange(128, 65536), default=512, help="MiB of it.  [default: 512]"),
            click.option("--tool", "tools", multiple=True, help="perf, trace-cmd or strace, for the guest."),
            click.option("--deadline", metavar="DURATION", help="End it after it.  [default: 120s amd, 300s intel]"),
        )
    ):
        command = decorator(command)
    return command


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@_machine_options
@click.option("--copy", "copies", multiple=True, type=click.Path(path_type=Path), help="A file or folder for CMD.")
@click.option("-o", "--output", metavar="DIR", type=click.Path(path_type=Path), help="For what CMD leaves in out/.")
@click.option("--trace", "trace", metavar="OUT", help="Record KVM's events: a trace.dat, perf.data or text file.")
@click.option("--fresh", is_flag=True, help="Boot the machine although a saved state of it is there.")
@options.as_json
@options.as_python
def exec_(
    program: tuple[str, ...],
    copies: tuple[Path, ...],
    output: Path | None,
    trace: str | None,
    fresh: bool,
    as_json: bool,
    as_python: bool,
    **machine: Any,
) -> int:
    """Run CMD in a kernel of the lab; its exit status is this command's.

    CMD's working folder holds what --copy names; busybox, Python 3 and wsw, the field kit, are there. A program of this
    host must be static, or come with its libraries. On AMD the booted machine is saved; later runs start at once.

    \b
    --trace OUT  OUT.dat   by trace-cmd        OUT.data  by perf
                 OUT.txt   as text, which needs no tool
    """
    from worldswitch.lab.jobs import Job, traced

    tool = _tracer(trace)
    if tool and tool != "tracefs":
        machine["tools"] = (*machine["tools"], tool)
    files: dict[str, bytes | Path] = {path.resolve().name: _there(path) for path in copies}
    job = Job(program, files)
    if tool:
        job = traced(job, tool)
    if as_python:
        click.echo(_python(machine, program, copies, tool))
        return 0
    from worldswitch.lab.machine import run

    limit = _deadline(machine)
    with _ended_politely():
        started = run(_machine(machine), [job], deadline=limit, saved=not fresh, progress=_progress())
    result = started.results[0]
    kept = _keep(result, output, trace, tool)
    if as_json:
        options.print_json(
            {
                "status": result.status, "stdout": result.stdout.decode(errors="replace"),
                "stderr": result.stderr.decode(errors="replace"), "files": kept, "guest_seconds": result.seconds,
                "seconds": started.seconds, "restored": started.restored, "emulator": started.emulator,
                "kernel": started.about.release, "parameters": dict(started.about.parameters),
            }
        )  # fmt: skip
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(result.stdout)
        sys.stderr.buffer.write(result.stderr)
    return result.status


exec = exec_  # the name its group looks for


@click.command()
@_machine_options
@options.as_python
def boot(as_python: bool, **machine: Any) -> int:
    """Boot a kernel and give a shell in it, on this terminal. Ctrl-] ends it."""
    if as_python:
        click.echo(_python(machine, (), (), None))
        return 0
    from worldswitch.lab.terminal import shell

    with _ended_politely():
        shell(_start(machine, default=86400.0))
    return 0


@click.command()
@_machine_options
@click.option("--folder", metavar="DIR", type=click.Path(path_type=Path), help="Write the files it names there.")
def command(folder: Path | None, **machine: Any) -> int:
    """Print the command that would boot the machine, with the files it needs, and start nothing.

    With --folder those files are written, so that the command can be run; it gives a shell.
    """
    from dataclasses import replace

    from worldswitch.lab.emulator import Boot

    start = _start(machine, default=0.0)
    if folder is None:
        place = Path("lab-machine")
        start.setup()
        boot = Boot(start.machine.kernel.vmlinuz, place / "initrd", (), place, start.machine.smp, start.machine.memory)
    else:
        from worldswitch.lab import diskio
        from worldswitch.lab.jobs import pack

        folder.mkdir(parents=True, exist_ok=True)
        boot, setup = start.files(folder.resolve())
        diskio.write_image(boot.jobs, pack(replace(setup, shell=True), ()))
        start.emulator.prepare(boot)
    for path, content in start.emulator.files(boot).items():
        click.echo(f"# {path}\n{''.join(f'#   {line}{chr(10)}' for line in content.decode().splitlines())}", nl=False)
    click.echo(start.emulator.command(boot).shell())
    return 0


@contextmanager
def _ended_politely() -> Iterator[None]:
    """A SIGTERM or SIGHUP is a Ctrl-C, so that nothing of the machine is left behind."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _machine(given: dict[str, Any]) -> Machine:
    from worldswitch.cli.lab_kit import lab_kit
    from worldswitch.lab import artifacts, settings
    from worldswitch.lab.machine import Machine

    chosen = dict(_pair(text) for text in given["sets"])
    chosen = {**settings.paging(given["mmu"], given["cpu"], chosen), **chosen}
    build = artifacts.build(given["build"]) if given["build"] else None
    kernel = _kernel(given, build)
    tools = tuple(dict.fromkeys(given["tools"]))
    return Machine(kernel, given["cpu"], chosen, build, given["smp"], given["memory"], tools, lab_kit())


def _kernel(given: dict[str, Any], build: BuildFiles | None) -> KernelFiles:
    from worldswitch.lab import artifacts

    image, modules = given["kernel_image"], given["modules"]
    spec = given["kernel"] or (build.release if build else None)
    if image is not None:
        if given["kernel"] or modules is None:
            raise UsageError("--kernel-image needs --modules with its modules, and no --kernel beside it")
        return artifacts.own_kernel(image, modules)
    if modules is not None:
        raise UsageError("--modules goes with --kernel-image")
    if not spec:
        raise UsageError("name a kernel: --kernel 6.12, --kernel-image FILE --modules DIR, or --build NAME")
    return artifacts.kernel_for(spec, build)


def _start(given: dict[str, Any], default: float) -> Start:
    from worldswitch.lab.emulator import emulator
    from worldswitch.lab.machine import Start

    limit = _deadline(given) or default
    machine = _machine(given)
    return Start(machine, emulator(machine.cpu, machine.kernel.release), limit, time.monotonic() + limit, _progress())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--set {printable(text)!r} is not NAME=VALUE, such as kvm.tdp_mmu=1")
    return name, value


def _deadline(given: dict[str, Any]) -> float | None:
    return None if given["deadline"] is None else seconds(given["deadline"])


def _there(path: Path) -> Path:
    if not path.exists():
        raise MissingError(f"no file {printable(str(path))} to copy into the guest")
    return path


def _tracer(trace: str | None) -> str | None:
    if trace is None:
        return None
    suffix = Path(trace).suffix
    if suffix not in _HOLDS:
        raise UsageError(f"--trace {printable(trace)!r} tells no format; end its name in {', '.join(_HOLDS)}")
    return _HOLDS[suffix]


def _keep(result: JobResult, output: Path | None, trace: str | None, tool: str | None) -> list[str]:
    """Write what came back; its names."""
    from worldswitch.lab.jobs import TRACERS

    written: list[str] = []
    recording = TRACERS[tool] if tool else None
    for name, data in result.files.items():
        if name == recording and trace:
            place = Path(trace)
        elif output:
            place = output / name
        else:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        written.append(str(place))
    if recording and recording not in result.files:
        said = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = printable(said[0]) if said else "it said nothing"
        raise MissingError(f"{tool} left no recording in the guest: {why}")
    return written


def _progress() -> Callable[[str], None]:
    """A line on a terminal, anew at each stage; elsewhere one from time to time."""
    from worldswitch.cli.progress import Line

    line = Line()

    def say(text: str) -> None:
        line.say(lambda: text)
        if text.endswith("ended"):
            line.clear()

    return say


def _python(given: dict[str, Any], program: tuple[str, ...], copies: tuple[Path, ...], tool: str | None) -> str:
    settings = dict(_pair(text) for text in given["sets"])
    build = f"artifacts.build({given['build']!r})" if given["build"] else None
    kernel = (
        f"artifacts.own_kernel(Path({str(given['kernel_image'])!r}), Path({str(given['modules'])!r}))"
        if given["kernel_image"]
        else f"artifacts.kernel({build}.release)"
        if build and not given["kernel"]
        else f"artifacts.kernel_for({given['kernel']!r}, {build})"
    )
    files = {path.resolve().name: path for path in copies}
    shown = ", ".join(f"{name!r}: Path({str(path)!r})" for name, path in files.items())
    job = f"Job({program!r}, {{{shown}}})"
    return "\n".join(
        [
            "from pathlib import Path",
            "",
            "from worldswitch.lab import artifacts, settings",
            "from worldswitch.lab.jobs import Job, traced",
            "from worldswitch.lab.machine import Machine, run",
            "",
            f"chosen = settings.mmu({given['mmu']!r}, {given['cpu']!r}) | {settings!r}",
            f"machine = Machine({kernel}, {given['cpu']!r}, chosen, {build},",
            f"                  smp={given['smp']}, memory={given['memory']}, tools={given['tools']!r})",
            f"job = {f'traced({job}, {tool!r})' if tool else job}",
            "print(run(machine, [job]).results[0])",
        ]
    )
