"""Result documents: what comes out goes in again, and what is no Result is refused with its place."""

from __future__ import annotations

import copy
import json
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldswitch.errors import MissingError, TraceFormatError
from worldswitch.record import resultfile
from worldswitch.record.result import (
    NOT_TOLD,
    Cell,
    Environment,
    FaultSeen,
    Metric,
    Provenance,
    Result,
    Spread,
    differences,
    flat_counts,
)
from worldswitch.record.resultfile import ResultFormatError, dumps, load, loads, save

WORDS = st.text(max_size=8)
WHOLE = st.integers(0, 2**64 - 1)
FINITE = st.floats(-1e18, 1e18) | st.integers(-(2**63), 2**63)
SCALARS = st.none() | st.booleans() | WORDS | FINITE
NAMES = st.text(min_size=1, max_size=8)


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, values, max_size=3)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


COUNTS = st.builds(lambda counts, reasons: {**counts, "exits_by_reason": reasons}, maps(FINITE), maps(FINITE)) | maps(
    FINITE
).filter(lambda counts: "exits_by_reason" not in counts)
ENVIRONMENTS = st.builds(Environment, *[st.none() | WORDS] * 4, parameters=maps(WORDS), machine=maps(WORDS))
SPREADS = st.lists(FINITE, min_size=3, max_size=3).map(lambda values: Spread(*sorted(values)))
METRICS = st.builds(
    Metric, WORDS, WORDS, tuples(FINITE), tuples(FINITE), st.booleans(), st.booleans(), st.integers(1, 1000)
)
CELLS = st.builds(
    Cell,
    st.builds(
        lambda on, program, more, inner: {**more, "parameters": inner, "on": on, "program": program},
        WORDS,
        WORDS,
        maps(SCALARS),
        maps(SCALARS),
    ),
    n=WHOLE,
    unit=WORDS,
    counters=COUNTS,
    per_op=COUNTS,
    time_ns=st.none() | SPREADS,
    create_vm_ns=st.none() | tuples(WHOLE),
    metrics=tuples(METRICS),
    faults=tuples(st.builds(FaultSeen, WORDS, *[WHOLE] * 5)),
    faults_total=WHOLE,
    values=maps(WHOLE),
    steady=st.booleans(),
    notes=tuples(WORDS),
    environment=st.none() | ENVIRONMENTS,
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | maps(inner), max_leaves=5)
PROVENANCES = st.builds(
    Provenance,
    WORDS,
    tuples(WORDS),
    maps(JSON),
    st.none() | st.integers(),
    st.none() | WORDS,
    st.none() | WORDS,
    maps(WORDS),
)
RESULTS = st.builds(Result, tuples(CELLS), PROVENANCES, ENVIRONMENTS)


def cell(**more: Any) -> Cell:
    dimensions = {"on": "kvm", "kernel": "6.12.1", "cpu": "intel", "mmu": "tdp", "program": "cr0-wp"}
    return Cell(dimensions, n=1000, unit="pair", **more)


def result(*cells: Cell) -> Result:
    return Result(cells or (cell(),), Provenance("0.1.0", ("wsw", "run")), Environment("X", "6.12.1"))


@given(RESULTS)
def test_a_result_comes_back_equal(made: Result) -> None:
    assert loads(dumps(made)) == made


def test_the_document_has_the_keys_that_tools_rely_on() -> None:
    counts = {"exits": 2000, "exits_by_reason": {"CR_ACCESS": 2000}, "root_loads": 1}
    per_op = {"exits": 2.0, "exits_by_reason": {"CR_ACCESS": 2.0}}
    made = result(cell(counters=counts, per_op=per_op, time_ns=Spread(1, 2, 3), create_vm_ns=(7, 8)))
    document = json.loads(dumps(made))
    (row,) = document["results"]
    assert (row["on"], row["kernel"], row["cpu"], row["mmu"], row["program"]) == (
        "kvm",
        "6.12.1",
        "intel",
        "tdp",
        "cr0-wp",
    )
    assert (row["n"], row["unit"], row["counters"], row["per_op"]) == (1000, "pair", counts, per_op)
    assert row["time_ns"] == {"low": 1, "mid": 2, "high": 3}
    assert row["create_vm_ns"] == [7, 8]
    assert document["differences"] == []


def test_what_is_not_known_is_null() -> None:
    (row,) = result(Cell({"on": "kvm", "program": "x"})).to_run_json()["results"]
    assert [row[key] for key in ("kernel", "cpu", "mmu", "time_ns", "create_vm_ns")] == [None] * 5


def test_a_cell_without_an_environment_has_the_results() -> None:
    other = Environment("Y")
    made = result(cell(), cell(environment=other))
    assert [made.environment_of(one) for one in made.cells] == [made.environment, other]


def test_differences_name_the_counter_and_its_value_in_each_cell() -> None:
    a = cell(per_op={"exits": 2, "exits_by_reason": {"CR_ACCESS": 2}, "root_loads": 1})
    b = cell(per_op={"exits": 0, "root_loads": 1})
    other = Cell({"on": "kvm", "program": "cpuid"}, per_op={"exits": 1})
    assert differences((a, other, b)) == [
        {"program": "cr0-wp", "counter": "exits", "per_op": [{"cell": 0, "value": 2}, {"cell": 2, "value": 0}]}
    ]


def test_a_reason_that_is_not_there_is_none_unless_reasons_are_not_told() -> None:
    owned = cell(per_op={"exits": 0, "exits_by_reason": {}})
    intercepted = cell(per_op={"exits": 2, "exits_by_reason": {"CR_ACCESS": 2}})
    untold = cell(per_op={"exits": 2, "exits_by_reason": {NOT_TOLD: 2}})
    exits, reason = differences((owned, intercepted))
    assert exits["counter"] == "exits"
    assert reason["counter"] == "exits_by_reason.CR_ACCESS"
    assert [one["value"] for one in reason["per_op"]] == [0, 2]
    assert differences((untold, intercepted)) == []


def test_flat_counts_name_reasons() -> None:
    assert flat_counts({"exits": 3, "exits_by_reason": {"HLT": 1}}) == {"exits": 3, "exits_by_reason.HLT": 1}


def test_flat_dimensions_name_parameters() -> None:
    assert Cell({"on": "kvm", "parameters": {"pcid": True}}).flat_dimensions() == {"on": "kvm", "parameters.pcid": True}


# --- what is no Result


def place(document: Any, path: str) -> tuple[Any, Any]:
    """The container and key that *path*, such as ``results.0.n``, leads to."""
    *way, last = [int(word) if word.isdecimal() else word for word in path.split(".")]
    for step in way:
        document = document[step]
    return document, last


def damaged(path: str, value: Any) -> str:
    document = result(
        cell(
            counters={"exits": 1, "exits_by_reason": {"HLT": 1}},
            time_ns=Spread(1, 2, 3),
            create_vm_ns=(1,),
            metrics=(Metric("t", "ns", (1.5,)),),
            faults=(FaultSeen("vcpu 0 body 0", 14, 2, 0, 0),),
            values={"v": 1},
        )
    ).to_run_json()
    document = json.loads(json.dumps(document))
    container, key = place(document, path)
    container[key] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("results", {}, "results is an object, not a list"),
        ("results.0", [], r"results\[0\] is a list, not an object"),
        ("results.0.n", -1, r"results\[0\]\.n is -1, not a whole number from 0"),
        ("results.0.n", True, r"results\[0\]\.n is True, not a whole number"),
        ("results.0.n", 1.5, r"results\[0\]\.n is 1.5, not a whole number"),
        ("results.0.n", 1 << 64, r"results\[0\]\.n is 18446744073709551616, not a whole number"),
        ("results.0.unit", None, r"results\[0\]\.unit is null, not a text"),
        ("results.0.dimensions", None, r"dimensions is null, not an object"),
        ("results.0.dimensions.on", 5, r"dimensions\.on is 5, not a text"),
        ("results.0.dimensions.cpu", [], r"dimensions\.cpu is a list, not a number"),
        ("results.0.dimensions.cpu", {"a": {}}, r"dimensions\.cpu\.a is an object, not a number"),
        ("results.0.counters.exits", "2", r"counters\.exits is '2', not a number"),
        ("results.0.counters.exits", {}, r"counters\.exits is an object, not a number"),
        ("results.0.counters.exits_by_reason", 2, r"counters\.exits_by_reason is 2, not a number|an object"),
        ("results.0.counters.exits_by_reason.HLT", False, r"exits_by_reason\.HLT is False, not a number"),
        ("results.0.time_ns", 5, r"time_ns is 5, not an object"),
        ("results.0.time_ns.low", 9, r"time_ns is not in order \(low 9, mid 2, high 3\)"),
        ("results.0.create_vm_ns.0", -3, r"create_vm_ns\[0\] is -3"),
        ("results.0.metrics.0.values", 3, r"metrics\[0\]\.values is 3, not a list"),
        ("results.0.metrics.0.values.0", None, r"values\[0\] is null, not a number"),
        ("results.0.metrics.0.exact", 1, r"exact is 1, not true or false"),
        ("results.0.faults.0.vector", "14", r"faults\[0\]\.vector is '14'"),
        ("results.0.values.v", 0.5, r"values\.v is 0\.5"),
        ("results.0.steady", "yes", r"steady is 'yes', not true or false"),
        ("provenance", [], "provenance is a list, not an object"),
        ("provenance.argv.0", 3, r"provenance\.argv\[0\] is 3, not a text"),
        ("provenance.seed", "x", r"provenance\.seed is 'x', not a whole number"),
        ("environment.parameters", {"kvm.x": 1}, r"environment\.parameters\.kvm\.x is 1, not a text"),
        ("version", 0, "version is 0"),
        ("version", "1", "version is '1'"),
        ("version", 2, "version 2, newer than 1, which this wsw reads; update wsw"),
        ("format", "perf", "not a result: its format is not 'worldswitch-result'"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(ResultFormatError, match=message):
        loads(damaged(path, value))


def test_a_key_that_must_be_there() -> None:
    document = result().to_run_json()
    del document["provenance"]["tool_version"]
    with pytest.raises(ResultFormatError, match=r"provenance\.tool_version is missing; it should be a text"):
        loads(json.dumps(document))


def test_keys_nobody_knows_are_passed_over() -> None:
    document = copy.deepcopy(json.loads(dumps(result())))
    document["more"] = document["results"][0]["more"] = document["provenance"]["more"] = {"a": [None]}
    assert loads(json.dumps(document)) == result()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON, or cut off"),
        ("{", "not JSON, or cut off"),
        (b"\xff\xfe\x00", "not JSON, or cut off"),
        (b"PERFILE2" + bytes(100), "not JSON, or cut off"),
        ("[]", "not a result"),
        ("3", "not a result"),
        ("null", "not a result"),
        ('{"results": []}', "not a result"),
        ("[" * 100_000, "nests too deeply"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"format": "worldswitch-result", "version": 1, "a": -Infinity}', "-Infinity is no number"),
        ('{"a": 1, "a": 2}', "'a' is in one object twice"),
        ('{"a": ' + "9" * 10_000 + "}", "not JSON|not a result"),
        ('{"format": "worldswitch-result", "version": ' + "9" * 4000 + "}", "newer than 1"),
    ],
)
def test_what_is_no_document(text: str | bytes, message: str) -> None:
    with pytest.raises(ResultFormatError, match=message):
        loads(text)


def test_it_is_an_error_of_formats() -> None:
    assert issubclass(ResultFormatError, TraceFormatError)


def test_numbers_too_large_for_a_float_are_refused() -> None:
    with pytest.raises(ResultFormatError, match="exits is 1000"):
        loads(damaged("results.0.counters.exits", 10**400))
    with pytest.raises(ResultFormatError, match="exits is inf"):
        loads(damaged("results.0.counters.exits", 5).replace('"exits": 5', '"exits": 1e999'))


def test_hostile_strings_do_not_reach_the_terminal() -> None:
    with pytest.raises(ResultFormatError) as refused:
        loads(damaged("results.0.counters", {"\x1b[2J": "\x1b]0;x\x07"}))
    assert not set(str(refused.value)) & {"\x1b", "\x07"}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_result_or_refused(data: bytes) -> None:
    with pytest.raises(ResultFormatError):
        loads(data)


@given(RESULTS, st.data())
def test_a_cut_document_is_refused(made: Result, data: st.DataObject) -> None:
    text = dumps(made)
    with pytest.raises(ResultFormatError):
        loads(text[: data.draw(st.integers(0, len(text) - 3))])


# --- files


def test_a_saved_result_loads_equal(tmp_path: Path) -> None:
    save(result(), tmp_path / "r.json")
    assert load(tmp_path / "r.json") == result()
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    with pytest.raises(ResultFormatError, match=r"/x: not a result"):
        load(tmp_path / "x")


@pytest.mark.parametrize("name", ["nowhere", ".", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingError, match="cannot be read"):
        load(tmp_path / name)


def test_a_document_too_long_for_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resultfile, "MAX_BYTES", 100)
    save(result(), tmp_path / "r.json")
    with pytest.raises(ResultFormatError, match="longer than any result"):
        load(tmp_path / "r.json")


@pytest.mark.parametrize("name", ["no/such/folder.json", "."])
def test_what_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingError, match=r"cannot be written to .*; name another file"):
        save(result(), tmp_path / name)


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(MissingError, match="cannot be written"):
        save(result(), tmp_path / "a")


@pytest.mark.parametrize("stop", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str, error: BaseException
) -> None:
    target = tmp_path / "r.json"
    target.write_text("before")

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(os if stop == "fsync" else Path, stop, fail)
    with pytest.raises((MissingError, KeyboardInterrupt)):
        save(result(), target)
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_permissions_of_an_existing_file_stay(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.touch()
    target.chmod(0o640)
    save(result(), target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to("real")
    save(result(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "real") == result()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    save(result(), pipe)
    reader.join()
    assert loads(got[0]) == result()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_names_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    name = "r" * 255
    save(result(), tmp_path / name)
    assert load(tmp_path / name) == result()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_not_saved(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        save(result(cell(per_op={"exits": value})), tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []
