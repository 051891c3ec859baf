from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from traces import DATA, flat
from worldswitch.cli import main, wsw
from worldswitch.cli.convert import convert
from worldswitch.errors import MissingError, UsageError
from worldswitch.trace import open_trace

PERF = DATA / "vmx-5.10-ept" / "wp.perf.data"
DAT = DATA / "vmx-5.10-ept" / "wp.trace.dat"


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(convert, [str(a) for a in arguments], input=stdin, catch_exceptions=False)


def test_every_format_holds_every_event(tmp_path: Path) -> None:
    events = len(open_trace(PERF))
    for name in ("a.parquet", "folder", "a.txt", "a.dat", "a.data"):
        result = run(PERF, "-o", tmp_path / name)
        assert result.exit_code == 0
        assert len(open_trace(tmp_path / name)) == events
    assert run(PERF, "-o", tmp_path / "a.perfetto.json").exit_code == 0
    assert len(json.loads((tmp_path / "a.perfetto.json").read_text())["traceEvents"]) > 0


def test_perf_data_to_parquet_to_perf_data_is_the_same(tmp_path: Path) -> None:
    run(PERF, "-o", tmp_path / "folder")
    run(tmp_path / "folder", "-o", tmp_path / "again.data", "--compression", "zstd")
    assert flat(open_trace(tmp_path / "again.data")) == flat(open_trace(PERF))


@pytest.mark.parametrize("arguments", [["--file-version", "6"], ["--compression", "zlib"], ["--compression", "zstd"]])
def test_trace_dat_to_trace_dat_is_the_same(arguments: list[str], tmp_path: Path) -> None:
    run(DAT, "-o", tmp_path / "again.dat", *arguments)
    assert flat(open_trace(tmp_path / "again.dat")) == flat(open_trace(DAT))


@pytest.mark.parametrize("to", ["trace.dat", "perf.data", "ftrace"])
def test_standard_output_takes_what_needs_no_seeking(to: str, tmp_path: Path) -> None:
    result = run(PERF, "-o", "-", "--to", to)
    (tmp_path / "piped").write_bytes(result.stdout_bytes)
    assert len(open_trace(tmp_path / "piped")) == len(open_trace(PERF))


def test_json_says_what_was_written(tmp_path: Path) -> None:
    told = json.loads(run(DAT, "-o", tmp_path / "a.data", "--json").stdout)
    assert told == {
        "output": str(tmp_path / "a.data"),
        "format": "perf.data",
        "events": 1282,
        "skipped": {},
        "lost": 0,
        "complete": True,
        "notes": [],
    }


def test_filters_slice_as_trace_slice_does(tmp_path: Path) -> None:
    trace = open_trace(PERF)
    middle = (trace.meta.first_ns + trace.meta.last_ns) // 2  # type: ignore[operator]
    run(
        PERF,
        "-o",
        tmp_path / "a.data",
        "--time",
        f"{middle}ns:",
        "--vcpu",
        "0",
        "--vm",
        "103",
        "--pid",
        "103",
    )
    expected = flat(trace.slice(time=(middle, None), vcpu=0, vm=103, tid=103))
    assert flat(open_trace(tmp_path / "a.data")) == expected
    assert 0 < len(expected) < len(trace)


def test_a_filter_that_nothing_matches_gives_an_empty_trace(tmp_path: Path) -> None:
    run(PERF, "-o", tmp_path / "a", "--vcpu", "9")
    assert len(open_trace(tmp_path / "a")) == 0


def test_a_vcpu_of_standard_input_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PERF.read_bytes())))
    convert.callback("-", str(tmp_path / "a"), None, None, None, 0, None, None, None, False, False)  # type: ignore[misc]
    assert flat(open_trace(tmp_path / "a")) == flat(open_trace(PERF).slice(vcpu=0))


@pytest.mark.parametrize("name", ["a.data", "a.dat", "a.txt", "a.json", "folder"])
def test_python_prints_calls_that_do_the_same(name: str, tmp_path: Path) -> None:
    code = run(PERF, "-o", tmp_path / name, "--time", "47.2:", "--python").stdout
    assert not (tmp_path / name).exists()
    exec(code, {})
    made = tmp_path / name
    assert made.is_dir() or made.stat().st_size > 0
    if name != "a.json":
        expected = open_trace(PERF).slice(time=(47_200_000_000, None))
        assert len(open_trace(made)) == len(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.foo"], "does not tell the format"),
        (["-o", "-"], "needs --to"),
        (["-o", "-", "--to", "parquet"], "cannot go to standard output"),
        (["-o", "-", "--to", "ftrace", "--json"], "both want standard output"),
        (["-o", "x.data", "--compression", "zlib"], "no compression zlib"),
        (["-o", "x.txt", "--compression", "zstd"], "no compression zstd"),
        (["-o", "x.data", "--file-version", "7"], "is for trace.dat"),
        (["-o", "x.dat", "--file-version", "6", "--compression", "zstd"], "version 6 has no compression"),
        (["-o", "x.dat", "--time", "5"], "no colon"),
        (["-o", "/", "--to", "ftrace"], "is a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run(PERF, *arguments)


def test_the_trace_itself_is_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "a.data"
    shutil.copy(PERF, mine)
    with pytest.raises(UsageError, match="is one of the inputs"):
        run(mine, "-o", tmp_path / "." / "a.data")
    assert mine.read_bytes() == PERF.read_bytes()


def test_a_trace_that_cannot_be_read_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PERFILE2" + bytes(200))
    for output in ("a.data", "a.dat", "a.txt", "folder"):
        with pytest.raises((UsageError, MissingError, ValueError)):
            run(tmp_path / "bad", "-o", tmp_path / output)
    assert [file.name for file in tmp_path.iterdir()] == ["bad"]


def test_a_cut_trace_gives_what_is_left_and_says_so(tmp_path: Path) -> None:
    cut = tmp_path / "cut.dat"
    run(PERF, "-o", tmp_path / "pipe.data", "--to", "perf.data")
    whole = run(PERF, "-o", "-", "--to", "perf.data").stdout_bytes
    cut.write_bytes(whole[: len(whole) - 5000])
    told = json.loads(run(cut, "-o", tmp_path / "a.txt", "--json").stdout)
    assert told["complete"] is False
    assert told["notes"]
    assert 0 < told["events"] < len(open_trace(PERF))


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="cannot write"):
        run(PERF, "-o", tmp_path / "none" / "a.data")


def test_wsw_runs_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as done:
        main(["convert", str(PERF), "-o", str(tmp_path / "a.txt")])
    assert done.value.code == 0
    assert (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from worldswitch.record.result import Cell, Provenance, Result
    from worldswitch.record.resultfile import save

    monkeypatch.chdir(tmp_path)
    save(Result((Cell({"on": "kvm", "program": "cpuid"}, per_op={"exits": 1}),), Provenance("1")), "r.json")
    return tmp_path


def test_a_result_becomes_a_table_or_metrics(kept: Path) -> None:
    import polars as pl

    for ending in ("csv", "prom", "parquet"):
        done = CliRunner().invoke(wsw, ["convert", "r.json", "-o", f"out.{ending}"])
        assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert (kept / "out.csv").read_text().splitlines()[1] == "0,kvm,cpuid,count,exits,,,1"
    assert 'wsw_run_exits{on="kvm",program="cpuid"} 1\n' in (kept / "out.prom").read_text()
    assert pl.read_parquet(kept / "out.parquet")["value"].to_list() == [1]


def test_a_result_goes_to_standard_output(kept: Path) -> None:
    done = CliRunner().invoke(wsw, ["convert", "r.json", "-o", "-", "--to", "prometheus"])
    assert done.stdout.endswith("# EOF\n")


@pytest.mark.parametrize("to", ["csv", "prom", "parquet"])
def test_python_of_a_result_does_the_same(kept: Path, to: str) -> None:
    CliRunner().invoke(wsw, ["convert", "r.json", "-o", f"a.{to}"])
    program = CliRunner().invoke(wsw, ["convert", "r.json", "-o", f"b.{to}", "--python"]).stdout
    exec(program, {})
    assert (kept / f"a.{to}").read_bytes().replace(b"\r", b"") == (kept / f"b.{to}").read_bytes().replace(b"\r", b"")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-o", "x.txt"), "a result is written as csv"),
        (("-o", "x.csv", "--vcpu", "0"), "are for traces"),
        (("-o", "-", "--to", "parquet"), "does not go to standard output"),
    ],
)
def test_what_a_result_is_not_written_as(kept: Path, words: tuple[str, ...], why: str) -> None:
    done = CliRunner().invoke(wsw, ["convert", "r.json", *words])
    assert why in str(done.exception or done.output)
    assert not list(kept.glob("x*"))


def test_a_result_is_not_overwritten_by_its_own_table(tmp_path: Path) -> None:
    mine = tmp_path / "result.csv"
    from worldswitch.record import result
    from worldswitch.record.resultfile import save

    given = result.Cell({"program": "cpuid", "on": "model"}, n=1, unit="op", per_op={"exits": 1})
    save(result.Result((given,), result.Provenance("0.1.0")), mine)
    before = mine.read_bytes()
    with pytest.raises(UsageError, match="is one of the inputs"):
        run(mine, "-o", mine)
    assert mine.read_bytes() == before
