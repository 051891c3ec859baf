from __future__ import annotations

import os
from pathlib import Path

import pytest

from worldswitch.errors import MissingError
from worldswitch.live import tracefs
from worldswitch.live.permissions import ROOT


def fake(root: Path, place: str = "sys/kernel/tracing") -> Path:
    here = root / place
    for event in ("kvm/kvm_exit", "kvm/kvm_entry", "sched/sched_switch"):
        (here / "events" / event).mkdir(parents=True)
        (here / "events" / event / "format").write_text("")
    (here / "events/kvm/enable").write_text("0")
    (here / "events/header_page").write_text("")
    (here / "instances").mkdir()
    return here


@pytest.mark.parametrize("place", ["sys/kernel/tracing", "sys/kernel/debug/tracing"])
def test_tracefs_is_found_where_it_is_mounted(tmp_path: Path, place: str) -> None:
    here = fake(tmp_path, place)
    assert tracefs.find(tmp_path) == here


def test_an_empty_mount_point_is_no_tracefs(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/tracing").mkdir(parents=True)
    assert tracefs.find(tmp_path) is None


def test_events_are_listed_by_system(tmp_path: Path) -> None:
    assert tracefs.events(fake(tmp_path)) == {"kvm": ("kvm_entry", "kvm_exit"), "sched": ("sched_switch",)}


def test_events_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert tracefs.events(tmp_path / "nowhere") is None


def test_events_are_switched_on_after_everything_else() -> None:
    steps = tracefs.steps(
        ("kvm:kvm_exit", "kvm:kvm_entry"), threads=(5, 6), exit_filter="exit_reason == 28", buffer=1 << 20, clock="mono"
    )
    assert steps == [
        ("buffer_size_kb", "1024"),
        ("trace_clock", "mono"),
        ("options/event-fork", "1"),
        ("set_event_pid", "5 6"),
        ("events/kvm/kvm_exit/filter", "exit_reason == 28"),
        ("events/kvm/kvm_exit/enable", "1"),
        ("events/kvm/kvm_entry/enable", "1"),
    ]


def test_an_instance_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="cannot make a tracing instance"), tracefs.instance(tmp_path / "nowhere"):
        pass


@pytest.mark.needs("kvm-events")
def test_the_instance_is_gone_whatever_happens() -> None:
    here = tracefs.find(ROOT)
    assert here is not None
    with pytest.raises(KeyError), tracefs.instance(here) as made:
        assert made.exists()
        raise KeyError
    assert not made.exists()


@pytest.mark.needs("kvm-events")
def test_instances_of_dead_recorders_are_swept() -> None:
    here = tracefs.find(ROOT)
    assert here is not None
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    left = here / "instances" / f"wsw-{child}"
    left.mkdir()
    with tracefs.instance(here):
        assert not left.exists()


@pytest.mark.needs("kvm-events")
def test_a_step_the_kernel_refuses_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    here = tracefs.find(ROOT)
    assert here is not None
    steps = [("events/kvm/kvm_exit/filter", "nonsense ==")]
    with pytest.raises(MissingError, match=r"'nonsense ==' in events/kvm/kvm_exit/filter"):
        tracefs.record(here, tmp_path / "out", steps, lambda _: None)
    assert not (here / "instances" / f"wsw-{os.getpid()}").exists()


@pytest.mark.needs("kvm-events")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not here")
def test_a_full_disk_is_told_and_leaves_no_instance() -> None:
    here = tracefs.find(ROOT)
    assert here is not None
    with pytest.raises(MissingError, match="broke off: No space left on device"):
        tracefs.record(here, Path("/dev/full"), [], lambda _: None)
    assert not (here / "instances" / f"wsw-{os.getpid()}").exists()
