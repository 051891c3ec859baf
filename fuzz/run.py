"""Fuzz every reader for a bounded number of inputs; exit with 1 if one misbehaves.

``WSW_FUZZ_RUNS`` (default 20000) inputs for each reader. With atheris the inputs follow coverage; where it is not
installed, a loop with a fixed seed mutates the same seeds, and says so. An input fails when anything but a
WorldswitchError comes out, when it takes more than two seconds, or when it needs more than 512 MiB; it is then left
in ``fuzz/failures/``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from targets import seeds, target  # noqa: E402

READERS = ("perfdata", "tracedat", "text", "pasted", "strace", "tooltables", "programs")
SECONDS = 2.0
MEBIBYTES = 512
SEED = 20240229
LONGEST = 1 << 17
FAILURES = HERE / "failures"
_NUMBERS = (
    0,
    1,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0xFFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def main() -> int:
    """Fuzz the readers named, or all."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("readers", nargs="*", metavar="READER", help=f"some of {', '.join(READERS)}")
    options.add_argument("--loop", action="store_true", help="use the built-in loop even if atheris is there")
    given = options.parse_args()
    runs = int(os.environ.get("WSW_FUZZ_RUNS", "20000"))
    with_atheris = importlib.util.find_spec("atheris") is not None and not given.loop
    if not with_atheris:
        print(f"atheris is not used: mutating the seeds at random, starting from {SEED}")
    failed = []
    for reader in given.readers or READERS:
        started = time.monotonic()
        ended_well = guided(reader, runs) if with_atheris else isolated(reader, runs)
        print(
            f"{reader}: {runs} inputs in {time.monotonic() - started:.0f} s: {'well' if ended_well else 'FAILED'}",
            flush=True,
        )
        failed += [reader] * (not ended_well)
    return 1 if failed else 0


def guided(reader: str, runs: int) -> bool:
    """Let atheris choose the inputs."""
    FAILURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for index, data in enumerate(seeds(reader)):
            (Path(corpus) / f"seed-{index}").write_bytes(data)
        limits = [f"-runs={runs}", f"-timeout={SECONDS:.0f}", f"-rss_limit_mb={MEBIBYTES}", f"-max_len={LONGEST}"]
        command = [
            sys.executable,
            str(HERE / "guided.py"),
            reader,
            *limits,
            f"-seed={SEED}",
            f"-artifact_prefix={FAILURES}/{reader}-",
        ]
        done = subprocess.run([*command, corpus], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-8000:], sep="\n")
    return done.returncode == 0


def isolated(reader: str, runs: int) -> bool:
    """The built-in loop in a process of its own, whose memory is its own."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); from run import loop; sys.exit(not loop({reader!r}, {runs}))"
    )
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def loop(reader: str, runs: int) -> bool:
    """Mutate the seeds with a fixed sequence of random numbers."""
    chance = random.Random(f"{SEED} {reader}")
    pool = list(seeds(reader))
    run = target(reader)
    for _ in range(runs):
        data = mutated(chance, chance.choice(pool), pool)[:LONGEST]
        started = time.monotonic()
        try:
            run(data)
        except Exception:
            return _failure(reader, data, traceback.format_exc())
        if time.monotonic() - started > SECONDS:
            return _failure(reader, data, f"took {time.monotonic() - started:.1f} s")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEBIBYTES * 1024:
            return _failure(reader, data, f"needed more than {MEBIBYTES} MiB")
    return True


def mutated(chance: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """*data* with a few of the damages files meet."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(8):
            case 0:
                del out[at:]
            case 1:
                del out[at : at + chance.randint(1, 64)]
            case 2:
                out[at:at] = chance.randbytes(chance.randint(1, 16))
            case 3:
                size = chance.choice((1, 2, 4, 8))
                number = chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)
                out[at : at + size] = number.to_bytes(size, "little")
            case 4:
                out[at:at] = out[at : at + chance.randint(1, 4096)]
            case 5:
                other = chance.choice(pool)
                begin = chance.randrange(len(other))
                out[at : at + 64] = other[begin : begin + chance.randint(1, 512)]
            case _:
                if at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def _failure(reader: str, data: bytes, why: str) -> bool:
    FAILURES.mkdir(exist_ok=True)
    path = FAILURES / f"{reader}-{abs(hash(data)):x}"
    path.write_bytes(data)
    print(f"{reader}: {why}\nThe input is {path}")
    return False


if __name__ == "__main__":
    sys.exit(main())
