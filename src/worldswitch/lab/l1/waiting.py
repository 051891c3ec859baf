"""A Python in the guest that has the field kit loaded and forks for each of its commands.

Started before a machine's state is saved, so that a restored machine need not load the kit, most of what it would do.
Each line in the pipe ``/lab/ask`` names a job's folder and the folder for what comes of it; the exit status of each
goes to standard output, and a word first when all is loaded. A folder's ``kit`` holds the arguments, separated by NUL.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

KIT, ASK = "/lab/wsw.pyz", "/lab/ask"


def load(kit: str) -> None:
    """Import all of the kit's modules, and run its smallest command for what it imports later."""
    sys.path.insert(0, kit)
    with zipfile.ZipFile(kit) as archive:
        names = [name.partition(".")[0].replace("/", ".") for name in archive.namelist() if name.endswith(".pyc")]
    for name in sorted(names):
        if "__" not in name or name.endswith(".__main__"):
            # A module may lack something here that only its own command needs.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
        main = importlib.import_module("worldswitch.kit.__main__")
        main.main(["programs"])
    gc.freeze()


def serve() -> None:
    """Run commands until the machine ends."""
    while True:
        with Path(ASK).open() as source:
            asked = source.read().splitlines()
        for line in asked:
            here, there = line.split(" ")
            print(run(Path(here), Path(there)), flush=True)


def run(here: Path, there: Path) -> int:
    """The exit status of one command, as a shell would give it."""
    pid = os.fork()
    if not pid:
        os._exit(command(here, there))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def command(here: Path, there: Path) -> int:
    """Be the kit, in a process of its own."""
    arguments = (here / "kit").read_text("utf-8").split("\0")
    os.chdir(here / "files")
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(there / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        return main(arguments)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def main(arguments: Sequence[str]) -> int:
    """The kit's main function, whichever way it ends."""
    sys.argv = [KIT, *arguments]
    try:
        done = importlib.import_module("worldswitch.kit.__main__").main(list(arguments))
        return done if isinstance(done, int) else 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1


if __name__ == "__main__":
    load(KIT)
    print("loaded", flush=True)
    serve()
