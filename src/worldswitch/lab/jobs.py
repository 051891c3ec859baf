"""What is to run in the lab's guest, and what came of it, as the archives that go in and come out."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from worldswitch.errors import UnknownNameError, UsageError, printable

KIT = "wsw"
"""The command that is the field kit."""
OUT = "out"
"""Folder in a job's working folder whose files come back."""


@dataclass(frozen=True)
class Job:
    """A program to run in the guest.

    Attributes:
        argv: Program and arguments; its working folder holds *files*, and what it leaves in ``out/`` there comes back.
        files: Path in the working folder -> content, or a file or folder of this host; modes are kept, content of
            bytes may be run.
        environment: Variables to set.
        limit: Seconds of the guest's time after which it is killed (status 137); None for no limit of its own.
    """

    argv: tuple[str, ...]
    files: Mapping[str, bytes | Path] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    limit: float | None = None


TRACERS = {"trace-cmd": "trace.dat", "perf": "perf.data", "tracefs": "trace.txt"}
"""What can record KVM's events in the guest, and the file each leaves. ``tracefs`` needs no tool."""


def traced(job: Job, tool: str) -> Job:
    """*job*, with the events of kvm and kvmmmu recorded while it runs, into a file of :data:`TRACERS` among its files.

    Raises:
        UnknownNameError: No such tool.
    """
    if tool not in TRACERS:
        raise UnknownNameError("recording tool", tool, TRACERS)
    return replace(job, argv=("/lab/bin/traced", tool, *job.argv))


@dataclass(frozen=True)
class JobResult:
    """What came of a job.

    Attributes:
        status: Exit status; 128 + N if signal N ended it, 127 if the program is not there.
        stdout, stderr: What it printed.
        files: Path below ``out/`` -> content.
        seconds: How long it ran on the guest's clock.
    """

    status: int
    stdout: bytes
    stderr: bytes
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False, repr=False)
    seconds: float = 0.0


@dataclass(frozen=True)
class About:
    """What the guest said of itself, for a stamp.

    Attributes:
        release, version: ``uname -r``, ``uname -v``.
        kernel_arguments: Its kernel's command line.
        parameters: ``module.parameter`` -> value, of all KVM's modules.
    """

    release: str
    version: str
    kernel_arguments: str
    parameters: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Setup:
    """What the guest does before its jobs.

    Attributes:
        modules: File and parameters of each module, in order.
        requested: (module, parameter) that must be there afterwards.
        favordynmods: Mount its cgroup2 so.
        save: Wait for a word on the console before the jobs, so that the machine may be saved and restored there.
        shell: A shell on the console instead of jobs.
    """

    modules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    requested: tuple[tuple[str, str], ...] = ()
    favordynmods: bool = False
    save: bool = False
    shell: bool = False


def pack(setup: Setup, jobs: Sequence[Job]) -> bytes:
    """The archive for the guest's first disk.

    Raises:
        UsageError: A path leaves the working folder.
        OSError: A file of this host cannot be read.
    """
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in _setup_files(setup).items():
            _add(archive, f"setup/{name}", text.encode())
        for number, job in enumerate(jobs):
            here = f"jobs/{number}"
            _add(archive, f"{here}/run", _script(job).encode())
            _add(archive, f"{here}/seconds", b"" if job.limit is None else f"{max(1, round(job.limit))}".encode())
            if job.argv[0] == KIT and not job.environment and job.limit is None:
                _add(archive, f"{here}/kit", "\0".join(job.argv[1:]).encode())
            _add_folder(archive, f"{here}/files")
            for name, content in job.files.items():
                inside = f"{here}/files/{_within(name)}"
                if isinstance(content, Path):
                    archive.add(content.resolve(), inside, filter=_as_root)
                else:
                    _add(archive, inside, content, 0o755)
    return sink.getvalue()


def unpack(archive: bytes, count: int) -> tuple[About, list[JobResult]]:
    """What the guest's second disk holds, for *count* jobs.

    Raises:
        ValueError: It is damaged, or holds fewer.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as source:
            for member in source:
                if content := source.extractfile(member):
                    files[str(PurePosixPath(member.name))] = content.read()
    except tarfile.TarError as error:
        raise ValueError(str(error)) from error
    try:
        return _about(files), [_result(files, f"out/jobs/{number}/") for number in range(count)]
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from error


def _setup_files(setup: Setup) -> dict[str, str]:
    return {
        "modules": "".join(f"{' '.join((path, *values))}\n" for path, values in setup.modules),
        "requested": "".join(f"{module} {name}\n" for module, name in setup.requested),
        "variables": f"FAVORDYNMODS={setup.favordynmods:d}\nSAVE={setup.save:d}\nSHELL_WANTED={setup.shell:d}\n",
    }


def _script(job: Job) -> str:
    settings = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.environment.items())
    return f"{settings}exec {shlex.join(job.argv)}\n"


def _within(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"{printable(name)!r} is no path within a job's working folder; write it without / and ..")
    return str(path)


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))


def _add_folder(archive: tarfile.TarFile, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(member)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _about(files: Mapping[str, bytes]) -> About:
    parameters = {}
    for line in _text(files["about/parameters"]).splitlines():
        path, _, value = line.partition(":")
        _, _, _, module, _, name = path.split("/")
        parameters[f"{module}.{name}"] = value
    release, version, cmdline = (_text(files[f"about/{name}"]) for name in ("release", "version", "cmdline"))
    return About(release, version, cmdline, dict(sorted(parameters.items())))


def _result(files: Mapping[str, bytes], prefix: str) -> JobResult:
    begin, end = map(float, _text(files[f"{prefix}seconds"]).split())
    inside = f"{prefix}files/"
    returned = {name.removeprefix(inside): data for name, data in files.items() if name.startswith(inside)}
    status = int(_text(files[f"{prefix}status"]))
    return JobResult(status, files[f"{prefix}stdout"], files[f"{prefix}stderr"], returned, round(end - begin, 2))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()
