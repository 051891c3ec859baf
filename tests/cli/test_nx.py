"""``wsw nx``."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from worldswitch.cli import wsw
from worldswitch.errors import MissingError, UnknownNameError, UsageError
from worldswitch.live import module

KERNELS = "5.10,6.1,6.12,7.2"
SMALL = ("timeline", "--vms", "20", "--hours", "2", "--intervals", "2")


def run(*args: str) -> str:
    result = CliRunner().invoke(wsw, ["nx", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def written(*args: str) -> list[tuple[str | None, str | None]]:
    """Error and what is read, of each write."""
    return [(one["error"], one["reads"]) for one in json.loads(run("write", "--json", *args))["writes"]]


def test_never_means_off_in_5_10_and_sticks_later() -> None:
    assert written("never", "force", "--kernel", "5.10") == [(None, "N"), (None, "Y")]
    assert written("never", "force", "--kernel", "7.2") == [(None, "never"), ("EPERM", "never")]


def test_vms_come_and_go_between_writes() -> None:
    words = ("force", "vm+", "never", "vm-", "never")
    assert written(*words, "--kernel", "6.1")[2:] == [("EBUSY", "Y"), (None, None), (None, "never")]
    assert written("never", "--vms", "1", "--kernel", "6.1") == [("EBUSY", "Y")]


def test_other_parameters_are_written_by_name() -> None:
    words = ("ratio=0x10", "period_ms=-1", "nx_huge_pages_recovery_period_ms=100")
    assert written(*words, "--kernel", "7.2") == [(None, "16"), ("EINVAL", "0"), (None, "100")]
    assert written("period_ms=100", "--kernel", "5.10") == [("ENOENT", None)]


def test_values_are_taken_as_they_are_and_escapes_only_where_asked_for() -> None:
    assert written(r"off\n", "force\n", r"\x31", "--kernel", "7.2") == [(None, "N"), (None, "Y"), ("EINVAL", "Y")]
    assert written("-e", r"never \n", r"force\n\n", r"1\0x", r"\x31", "--kernel", "7.2") == [
        (None, "N"),
        (None, "N"),
        (None, "Y"),
        (None, "Y"),
    ]


def test_each_begins_anew() -> None:
    assert written("--each", "never", "never", "off", "--kernel", "7.2") == [
        (None, "never"),
        (None, "never"),
        (None, "N"),
    ]


def test_a_minus_is_a_value_too() -> None:
    assert written("-1", "--kernel", "7.2") == [("EINVAL", "Y")]


def test_auto_follows_the_processor() -> None:
    def auto(*host: str) -> str | None:
        return written("auto", "--kernel", "6.12", *host)[0][1]

    assert [auto(), auto("--cpu", "amd"), auto("--itlb-multihit", "no"), auto("--mitigations-off")] == [*"YNNN"]
    assert auto("--cpu", "amd", "--itlb-multihit", "yes") == "Y"


def test_a_setting_is_as_kvm_is_loaded() -> None:
    assert written("off", "--kernel", "6.12", "--set", "nx_huge_pages=never") == [("EPERM", "never")]


def test_show_tells_what_the_vulnerability_file_reads() -> None:
    def text(*args: str) -> str:
        kernels = json.loads(run("show", "--json", "--kernel", "6.12", *args))["kernels"]
        return str(kernels[0]["itlb_multihit"])

    assert text() == "KVM: Mitigation: Split huge pages"
    assert text("--set", "nx_huge_pages=never") == "KVM: Vulnerable"
    assert text("--cpu", "amd") == "Not affected"


def test_show_names_recovery_and_opting_out_of_each_kernel() -> None:
    kernels = json.loads(run("show", "--json", "--kernel", KERNELS))["kernels"]
    assert [one["opt_out"] for one in kernels] == [False, True, True, True]
    assert [one["recovery_stops_faults"] for one in kernels] == [True, True, True, False]
    assert [one["period_ms"] for one in kernels] == [None, 0, 0, 0]


@pytest.mark.parametrize(
    "args",
    [
        ("show", "--kernel", KERNELS),
        ("write", "auto", "off", "force", "never"),
        ("write", "force", "vm+", "never", "ratio=1", "--kernel", "7.2"),
        ("timeline", "--vms", "10", "--kernel", "5.10,7.2"),
    ],
)
def test_tables_fit_100_columns(args: tuple[str, ...]) -> None:
    assert max(map(len, run(*args).splitlines())) <= 100


@pytest.mark.parametrize(
    "args",
    [
        ("show", "--kernel", "7.2"),
        ("write", "never", "--kernel", "5.10"),
        ("timeline", "--vms", "2", "--hours", "1"),
        ("show",),
    ],
)
def test_the_python_runs(args: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", run(*args, "--python")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **parameters: str) -> None:
    """A host whose files say so."""
    folder = tmp_path / "sys/module/kvm/parameters"
    folder.mkdir(parents=True)
    for name, value in parameters.items():
        (folder / name).write_text(f"{value}\n")
    bugs = tmp_path / "sys/devices/system/cpu/vulnerabilities"
    bugs.mkdir(parents=True)
    (bugs / "itlb_multihit").write_text("KVM: Mitigation: Split huge pages\n")
    monkeypatch.setattr("worldswitch.live.permissions.ROOT", tmp_path)
    real = module.parameters
    monkeypatch.setattr(module, "parameters", lambda: real(tmp_path))


def test_show_reads_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(
        monkeypatch, tmp_path, nx_huge_pages="Y", nx_huge_pages_recovery_ratio="7", nx_huge_pages_recovery_period_ms="0"
    )
    found = json.loads(run("show", "--json"))
    assert (found["splits"], found["recovery_period_ms"]) == (True, 514_285)
    assert found["itlb_multihit"] == "KVM: Mitigation: Split huge pages"
    assert "cannot tell" in run("show")


def test_a_host_of_5_10_has_a_pass_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(monkeypatch, tmp_path, nx_huge_pages="Y", nx_huge_pages_recovery_ratio="7")
    assert json.loads(run("show", "--json"))["recovery_period_ms"] == 60_000


def test_a_host_with_never_has_no_recovery(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(monkeypatch, tmp_path, nx_huge_pages="never", nx_huge_pages_recovery_ratio="60")
    found = json.loads(run("show", "--json"))
    assert (found["splits"], found["recovery_period_ms"]) == (False, None)


def test_a_host_without_kvm_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host(monkeypatch, tmp_path)
    with pytest.raises(MissingError, match="KVM is not loaded"):
        run("show")


def test_the_timeline_is_the_same_in_every_form() -> None:
    document = json.loads(run(*SMALL, "--json", "--kernel", "6.12,7.2"))
    rows = list(csv.DictReader(io.StringIO(run(*SMALL, "--csv", "--kernel", "6.12,7.2"))))
    assert [{name: str(value) for name, value in row.items()} for row in document["intervals"]] == rows
    assert [(row["kernel"], row["end_ms"]) for row in document["intervals"]] == [
        ("6.12.117", 3_600_000),
        ("6.12.117", 7_200_000),
        ("7.2.13", 3_600_000),
        ("7.2.13", 7_200_000),
    ]
    text = run(*SMALL, "--kernel", "6.12,7.2")
    assert all(f"{row['zapped']:,}" in text for row in document["intervals"])


def test_the_cost_of_a_zap_is_told_with_where_it_is_from() -> None:
    assert "tuned#363" in run(*SMALL)
    assert json.loads(run(*SMALL, "--zap-cost", "30us", "--json"))["zap_cost_origin"] == "given by --zap-cost"


def test_the_picture_is_one_svg_with_a_line_for_each_kernel(tmp_path: Path) -> None:
    run(*SMALL, "--kernel", "6.12,7.2", "-o", str(tmp_path / "fleet.svg"))
    tree = ElementTree.parse(tmp_path / "fleet.svg")
    assert len(tree.findall(".//{*}polyline")) == 2 * 3
    texts = [element.text or "" for element in tree.findall(".//{*}text")]
    assert sum("Linux 7.2.13" in text for text in texts) == 3


@pytest.mark.parametrize(
    ("args", "error", "complaint"),
    [
        (("show", "--realtime"), UsageError, "name a kernel"),
        (("write", "never", "--kernel", "6.1,7.2,6.1"), UsageError, "names '6.1' twice"),
        (("show", "--kernel", "4.9"), UnknownNameError, "facts reach from"),
        (("show", "--kernel", "7.2", "--set", "nx_huge_pages=xyz"), UsageError, "does not load kvm.ko"),
        (("show", "--kernel", "7.2", "--set", "tdp_mmu=0"), UnknownNameError, "unknown parameter"),
        (("show", "--kernel", "7.2", "--set", "never"), UsageError, "not NAME=VALUE"),
        (("write", "vm-"), UsageError, "but there is none"),
        (("write", "nx_huge_page=1"), UnknownNameError, "nearest: nx_huge_pages"),
        (("write", "-e", r"\q"), UsageError, "is no escape"),
        (("timeline", "--first", "0"), UsageError, "less than a millisecond"),
        (("timeline", "--first", "soon"), UsageError, "not a duration"),
        (("timeline", "--executed", "2000"), UsageError, "more than the 1024"),
        (("timeline", "-o", "a.png"), UsageError, "no .svg file"),
        (("timeline", "--vms", "1", "--hours", "1", "-o", "/nowhere/a.svg"), UsageError, "cannot write"),
        (("timeline", "--json", "--csv"), UsageError, "exclude each other"),
        (("timeline", "--set", "period_ms=1"), UsageError, "take too long"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, ...], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        run(*args)
