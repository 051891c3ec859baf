"""What a user sees of bad input: one sentence, the right status, and nothing that steers a terminal."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts import CPUID, entry, exit_, trace
from worldswitch.record.formats import parse_format
from worldswitch.record.trace import Trace
from worldswitch.trace.writers.perfdata import PerfOptions, write_perfdata

DATA = Path(__file__).parents[1] / "data"
WSW = (sys.executable, "-c", "from worldswitch.cli import main; main()")
SMALL = DATA / "vmx-5.10-ept" / "kvmstat.perf.data"
TEXT = DATA / "vmx-5.10-ept" / "trace.txt"
USAGE, MISSING, INTERRUPTED = 2, 3, 130


def wsw(*arguments: object, **options) -> subprocess.CompletedProcess[bytes]:
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 60} | options
    return subprocess.run([*WSW, *map(str, arguments)], check=False, **options)


def refused(done: subprocess.CompletedProcess[bytes], status: int, says: str) -> None:
    """One sentence on stderr, nothing on stdout."""
    assert done.returncode == status, done.stderr
    assert done.stdout == b""
    sentence = done.stderr.decode()
    assert sentence.count("\n") == 1, sentence
    assert sentence.startswith("wsw: ")
    assert says in sentence


@pytest.mark.parametrize("command", ["analyze", "whatif"])
def test_a_missing_file(command: str, tmp_path: Path) -> None:
    more = ["--from", "5.10", "--to", "6.12"] if command == "whatif" else []
    refused(wsw(command, tmp_path / "nothing", *more), MISSING, "No such file")


def test_a_directory(tmp_path: Path) -> None:
    refused(wsw("analyze", tmp_path), USAGE, "is a directory")


def test_a_file_one_may_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        refused(wsw("analyze", "/proc/self/mem"), MISSING, "cannot read")
    else:
        refused(wsw("analyze", secret), MISSING, "Permission denied")


NO_TRACES = {"empty": b"", "zeros": bytes(100), "random": b"\1" + os.urandom(64), "prose": b"hello\n" * 9}


@pytest.mark.parametrize("kind", NO_TRACES)
def test_what_is_no_trace(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(NO_TRACES[kind])
    refused(wsw("analyze", path), USAGE, str(path))


@pytest.mark.parametrize("endless", ["/dev/zero", "/dev/urandom"])
def test_endless_input_ends(endless: str) -> None:
    refused(wsw("analyze", endless), USAGE, "no reader knows")


def test_endless_standard_input_ends() -> None:
    with Path("/dev/zero").open("rb") as zeros:
        refused(wsw("analyze", "-", stdin=zeros), USAGE, "standard input")


def test_a_fifo_nobody_writes_into(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused(wsw("analyze", fifo), MISSING, "nobody writes")


def test_a_fifo_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    threading.Thread(target=lambda: fifo.write_bytes(SMALL.read_bytes()), daemon=True).start()
    done = wsw("analyze", "--json", fifo)
    assert json.loads(done.stdout)["events"] == json.loads(wsw("analyze", "--json", SMALL).stdout)["events"]


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_read(packed: bool) -> None:
    data = SMALL.read_bytes()
    done = wsw("analyze", "--json", "-", stdin=None, input=gzip.compress(data) if packed else data)
    assert json.loads(done.stdout)["meta"]["source"] == "standard input"
    assert json.loads(done.stdout)["exits"] == json.loads(wsw("analyze", "--json", SMALL).stdout)["exits"]


def test_closed_standard_input() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *WSW, "analyze", "-"], capture_output=True, timeout=60, check=False
    )
    refused(done, MISSING, "standard input")


def test_a_cut_file_is_analyzed_up_to_the_cut(tmp_path: Path) -> None:
    whole = DATA / "svm-6.1-npt" / "wp.perf-script.head.txt"
    packed = tmp_path / "cut.gz"
    packed.write_bytes(gzip.compress(whole.read_bytes())[:-200])
    done = wsw("analyze", "--json", packed)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["meta"]["complete"] is False
    assert document["events"]["kvm_exit"] > 50
    assert "incomplete" in {seen["id"] for seen in document["detectors"]}
    assert wsw("analyze", packed, "--fail-on", "incomplete").returncode == 1


HOSTILE = "\x1b[31mred\x1b]0;title\x07<script>alert(1)</script>\r\n,\u202eevil\x9b2J"


def hostile_perf_data(path: Path) -> None:
    made = trace(entry(10, 77), exit_(20, 77, CPUID), entry(30, 77), exit_(40, 77, 0x999), entry(50, 77), pid=77)
    text = "name: {}\nID: {}\nformat:\n" + "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n"
    exits = "".join(
        f"\tfield:{kind} {name};\toffset:{at};\tsize:{size};\tsigned:0;\n"
        for kind, name, at, size in (
            ("u32", "exit_reason", 8, 4), ("u32", "isa", 12, 4), ("u64", "guest_rip", 16, 8), ("u64", "info1", 24, 8),
            ("u64", "info2", 32, 8), ("u32", "vcpu_id", 40, 4),
        )
    )  # fmt: skip
    formats = {
        "kvm_exit": parse_format(text.format("kvm_exit", 100) + exits, "kvm"),
        "kvm_entry": parse_format(
            text.format("kvm_entry", 101) + "\tfield:u32 vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n", "kvm"
        ),
    }
    made = Trace(list(made.batches()), made.meta, formats)
    made.meta.comms = {77: HOSTILE}
    made.meta.kernel, made.meta.host, made.meta.cpu_model = HOSTILE, HOSTILE, HOSTILE
    with path.open("wb") as stream:
        write_perfdata(made, stream, PerfOptions())


@pytest.mark.parametrize("how", [[], ["--json"], ["--by", "vm,reason"]], ids=["text", "json", "by"])
def test_hostile_names_do_not_reach_the_terminal(how: list[str], tmp_path: Path) -> None:
    path = tmp_path / "hostile.perf.data"
    hostile_perf_data(path)
    done = wsw("analyze", path, *how)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert "red" in shown
    assert shown.replace("\n", "").isprintable()
    if not how:
        # One row of the table stays one line, escapes spelled out.
        assert re.search(r"^.*\\x1b\[31m.*$", shown, re.MULTILINE)


def test_a_hostile_file_name_does_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = tmp_path / "a\x1b[2J\n.txt"
    refused(wsw("analyze", evil), MISSING, "\\x1b[2J\\n")
    evil.write_bytes(TEXT.read_bytes())
    done = wsw("analyze", evil, TEXT)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout


def test_hostile_text_does_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(TEXT.read_bytes().replace(b"kvmlab", b"a\x1b[31mb\x9b"))
    done = wsw("analyze", path)
    assert done.stdout.decode().replace("\n", "").isprintable(), done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    shell = '"$@" | head -n 1; echo "status ${PIPESTATUS[0]}" >&2'
    done = subprocess.run(
        ["bash", "-c", shell, "bash", *WSW, "analyze", *[str(TEXT)] * 40], capture_output=True, timeout=120, check=True
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b"status 0\n"


def test_output_that_cannot_be_written_is_no_traceback() -> None:
    with Path("/dev/full").open("wb") as full:
        done = wsw("analyze", TEXT, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == MISSING
    assert b"Traceback" not in done.stderr
    assert b"No space left" in done.stderr


def test_ctrl_c_ends_at_once() -> None:
    """Also while the decoding thread waits for a pipe that stays silent."""
    with subprocess.Popen(
        [*WSW, "analyze", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        line = b"kvm-7 [000] .... 1.000001: kvm_entry: vcpu 0, rip 0xfff0\n"
        running.stdin.write(line * 3000)
        running.stdin.flush()
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == INTERRUPTED
        assert running.stderr.read().strip() == b"wsw: interrupted"


def test_a_terminal_without_the_signs_gets_question_marks() -> None:
    done = wsw("analyze", TEXT, env=os.environ | {"PYTHONIOENCODING": "iso8859-1"})
    assert done.returncode == 0, done.stderr
    assert " \xb5s" in done.stdout.decode("iso8859-1")
    assert b"?" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--than", "fast"], "not a duration"),
        (["--than", "1e999s"], "longer than any trace"),
        (["--time", "5"], "no colon"),
        (["--time", "5:4"], "ends before it begins"),
        (["--by", "cpu"], "unknown key"),
        (["--reason", "CR_ACESS"], "nearest: CR_ACCESS"),
        (["--fail-on", "root-chrun"], "nearest: root-churn"),
        (["--exit-reasons", "/nowhere.toml"], "cannot read"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(arguments: list[str], says: str) -> None:
    done = wsw("analyze", TEXT, *arguments)
    refused(done, MISSING if "cannot" in says else USAGE, says)


def test_python_prints_what_runs() -> None:
    code = wsw("analyze", SMALL, "--python", "--reason", "CR_ACCESS", "--than", "1us", "--by", "reason").stdout
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, timeout=60, check=True)
    assert b"CR_ACCESS" in done.stdout


def test_several_traces_are_told_apart() -> None:
    document = json.loads(wsw("analyze", "--json", TEXT, SMALL).stdout)
    assert [len(part["exits"]) > 0 for part in document["traces"]] == [True, True]


def test_text_fits_in_100_columns() -> None:
    for path in (SMALL, TEXT, DATA / "svm-5.10-npt" / "strace.txt", DATA / "svm-5.10-npt" / "kvmstat.txt"):
        for more in ([], ["--by", "vm,vcpu,reason"]):
            lines = wsw("analyze", path, *more).stdout.decode().splitlines()
            assert lines
            tables = [
                line for line in lines if not line.startswith(("trace ", "kernel ", "host ", "note:", "root-churn:"))
            ]
            assert max(map(len, tables)) <= 100, path
