"""The field kit's command: ``python3 wsw.pyz run cr0-wp --on kvm``. Python 3.9, standard library only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from worldswitch.errors import MissingError, WorldswitchError
from worldswitch.kit import words

DONE, USAGE, MISSING, UNSTABLE, INTERRUPTED = 0, 2, 3, 4, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status, as those of ``wsw``."""
    asked = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        status = _COMMANDS[asked.command](asked)
        sys.stdout.flush()
        return status
    except MissingError as error:
        return _fail(error, MISSING)
    except WorldswitchError as error:
        return _fail(error, USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has all it wanted; what Python flushes at its end must go somewhere.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except OSError as error:
        return _fail(f"cannot read or write: {error.strerror or error}", MISSING)
    except MemoryError:
        return _fail("not enough memory for this input", MISSING)


def _fail(error: object, status: int) -> int:
    sys.stderr.write(f"wsw: {error}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="wsw.pyz", description="World switches of KVM guests: the field kit.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run guest programs, or create-vm, on this host's KVM")
    run.add_argument("programs", nargs="*", metavar="PROGRAM[,PROGRAM]|FILE.img", help="see: programs")
    run.add_argument("--image", action="append", default=[], metavar="FILE", help="an assembled program")
    run.add_argument("--on", choices=("kvm",), default="kvm", help="where to run")
    run.add_argument("-n", type=_number(1, words.LARGEST_N), help="units to run")
    run.add_argument("--repeat", type=_number(0, words.MOST_RUNS), help="runs that are timed; 0 only counts")
    run.add_argument("--set", action="append", default=[], metavar="cpuid.FEATURE=0|1", help="hide or show it")
    run.add_argument("--deadline", metavar="DURATION", help=f"what a run may take (default: {words.DEADLINE:g}s)")
    run.add_argument("--json", action="store_true", help="print JSON with stable keys")
    run.add_argument("--save", metavar="FILE", help="keep the results, for wsw compare")
    vms = run.add_argument_group("create-vm")
    vms.add_argument("--vms", type=_number(0, 100_000), help="idle VMs that are there already")
    vms.add_argument("--burst", type=_number(1, 10_000), help="VMs made at once")
    vms.add_argument("--workers", choices=("threads", "processes"), help="what makes them")
    vms.add_argument("--first-run", action="store_true", default=None, help="time the first KVM_RUN of each too")
    vms.add_argument("--cgroup", metavar="PATH", help="make them in this cgroup")
    programs = commands.add_parser("programs", help="list the programs in this file")
    programs.add_argument("--json", action="store_true", help="print JSON")
    record = commands.add_parser("record", help="record KVM's events, for wsw analyze")
    record.add_argument("program", nargs=argparse.REMAINDER, metavar="[-- CMD...]", help="record while it runs")
    record.add_argument("-o", "--output", metavar="OUT", help="file to write")
    record.add_argument("--events", default="default", metavar="SET", help="default, cr, all, or events")
    record.add_argument("--vm", type=int, action="append", default=[], metavar="PID", help="only this process")
    record.add_argument("-a", "--all-cpus", action="store_true", help="every VM of this host while CMD runs")
    record.add_argument("--seconds", type=float, metavar="S", help="stop after this time")
    record.add_argument("--tool", choices=("perf", "tracefs"), help="what records")
    _add_doctor(commands.add_parser("doctor", help="what in this host's settings costs KVM, and what to do"))
    counters = commands.add_parser("counters", help="KVM's statistics of the VMs of a process")
    counters.add_argument("pid", type=int, metavar="PID")
    return parser


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    from worldswitch.kit.doctor import LEVELS, PROFILES

    doctor.add_argument("snapshots", nargs="*", metavar="SNAPSHOT.tar", help="judge the hosts of these")
    doctor.add_argument("--root", metavar="DIR", help="judge the host whose root tree is in DIR")
    doctor.add_argument("--snapshot", metavar="OUT.tar", help="write what is read, no secrets, and judge nothing")
    doctor.add_argument("--profile", choices=PROFILES, default="default", help="what the host is for")
    doctor.add_argument("--script", action="store_true", help="print a script that fixes, or undoes")
    doctor.add_argument("--prometheus", action="store_true", help="print metrics for node_exporter")
    doctor.add_argument("--markdown", action="store_true", help="print Markdown, to paste")
    doctor.add_argument("--fail-on", choices=LEVELS, help="status 1 if a finding is as bad or worse")
    doctor.add_argument("--json", dest="as_json", action="store_true", help="print JSON with stable keys")


class _number:
    """Reads a whole number within limits."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def __call__(self, text: str) -> int:
        value = int(text)
        if not self.least <= value <= self.most:
            raise argparse.ArgumentTypeError(f"{value} is not between {self.least} and {self.most}")
        return value


def _run(asked: argparse.Namespace) -> int:
    from worldswitch.kit.run import run

    return run(asked)


def _programs(asked: argparse.Namespace) -> int:
    from worldswitch.kit.programs import index
    from worldswitch.kit.text import table

    found = index()["programs"]
    if asked.json:
        import json

        sys.stdout.write(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return DONE
    # With other parameters a program does the same a little differently.
    rows = [(name, one["unit"], "" if ":" in name else one["summary"]) for name, one in sorted(found.items())]
    rows.append(("create-vm", "VM", "Makes VMs, alone or in bursts, and times KVM_CREATE_VM."))
    sys.stdout.write(table(("program", "unit", "what it does"), rows, left=(0, 1, 2)))
    return DONE


def _record(asked: argparse.Namespace) -> int:
    from worldswitch.live.record import Request, record

    program = asked.program[1:] if asked.program[:1] == ["--"] else asked.program
    done = record(
        Request(
            output=asked.output, events=asked.events, program=tuple(program), vms=tuple(asked.vm),
            everywhere=asked.all_cpus, seconds=asked.seconds, tool=asked.tool,
        )
    )  # fmt: skip
    sys.stderr.write(f"{done.path}: {done.size:,} bytes by {done.tool}; next, where it is: wsw analyze {done.path}\n")
    return DONE


def _counters(asked: argparse.Namespace) -> int:
    from worldswitch.kit.text import table
    from worldswitch.live.statsfd import of_process

    for vm, counts in of_process(asked.pid).items():
        rows = [(name, f"{value:,}") for name, value in sorted(counts.items())]
        sys.stdout.write(f"VM {vm}\n{table(('statistic', 'value'), rows, left=(0,))}\n")
    return DONE


def _doctor(asked: argparse.Namespace) -> int:
    from worldswitch.kit.doctor import Asked, Line, doctor

    given = {name: getattr(asked, name) for name in Asked._fields if name != "snapshots"}
    return doctor(Asked(tuple(asked.snapshots), **given), Line().say)


_COMMANDS = {"doctor": _doctor, "run": _run, "programs": _programs, "record": _record, "counters": _counters}

if __name__ == "__main__":
    sys.exit(main())
