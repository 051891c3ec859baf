"""Saved states, with a stand-in for the emulator; real boots show that counts are the same either way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lab.machines import GOOD, SavingStand, kernel
from worldswitch.errors import MissingError
from worldswitch.lab import cache, initramfs, snapshot
from worldswitch.lab.failures import MachineCrashed
from worldswitch.lab.jobs import Job
from worldswitch.lab.machine import Machine, run

JOB = Job(("true",))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    guest = tmp_path / "guest.cpio"
    guest.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(initramfs, "guest_archive", lambda guest_: guest)
    monkeypatch.setattr(initramfs, "guest_key", lambda guest_: "guest")
    monkeypatch.setattr("worldswitch.lab.machine.guest", lambda machine_: None)
    return Machine(kernel(tmp_path), "amd", {})


def states() -> list[cache.Entry]:
    return cache.entries(snapshot.KIND)


def test_a_machine_is_saved_once_and_then_restored(machine):
    first, second = (run(machine, [JOB], through=SavingStand()) for _ in range(2))
    assert (first.restored, second.restored) == (False, True)
    assert first.results == second.results
    assert len(states()) == 1


def test_a_restored_machine_is_told_to_go_on(machine):
    told = SavingStand(restored=("read", "say wsw-lab: running", "write", "say wsw-lab: done", "sleep 60"))
    assert run(machine, [JOB], through=told).results[0].status == 0


def test_another_setting_is_another_state(machine):
    from dataclasses import replace

    run(machine, [JOB], through=SavingStand())
    run(replace(machine, settings={"npt": "0"}), [JOB], through=SavingStand())
    assert len(states()) == 2


def test_everything_that_matters_is_in_the_key(machine, tmp_path):
    from dataclasses import replace

    stand = SavingStand()
    keys = {
        snapshot.key(machine, stand),
        snapshot.key(replace(machine, settings={"npt": "0"}), stand),
        snapshot.key(replace(machine, smp=2), stand),
        snapshot.key(replace(machine, memory=1024), stand),
        snapshot.key(machine, SavingStand(version="2")),
    }
    module = next(machine.kernel.modules.rglob("kvm-amd.ko"))
    module.write_bytes(module.read_bytes() + b"\0")
    keys.add(snapshot.key(machine, stand))
    machine.kernel.vmlinuz.write_bytes(b"another")
    keys.add(snapshot.key(machine, stand))
    assert len(keys) == 7
    assert snapshot.key(machine, stand) == snapshot.key(machine, stand)


def test_a_damaged_state_is_made_again(machine):
    run(machine, [JOB], through=SavingStand())
    (states()[0].path / snapshot.STATE).write_bytes(b"")
    again = run(machine, [JOB], through=SavingStand())
    assert (again.restored, again.results[0].status) == (False, 0)
    assert states()[0].damage() is None


def test_a_state_that_does_not_come_back_is_made_again(machine):
    run(machine, [JOB], through=SavingStand())
    state = states()[0].path / snapshot.STATE
    state.write_bytes(b"x" * state.stat().st_size)
    said: list[str] = []
    again = run(machine, [JOB], through=SavingStand(), progress=said.append)
    assert (again.restored, again.results[0].status) == (False, 0)
    assert any("does not come back" in text for text in said)


def test_a_crash_of_the_jobs_is_not_the_states_fault(machine):
    crash = SavingStand(restored=("read", "say wsw-lab: running", "exit 1"))
    with pytest.raises(MachineCrashed):
        run(machine, [JOB], through=crash)
    with pytest.raises(MachineCrashed):
        run(machine, [JOB], through=crash)
    assert len(states()) == 1


def test_a_boot_that_fails_leaves_no_state(machine):
    with pytest.raises(MachineCrashed):
        run(machine, [JOB], through=SavingStand(steps=("say hello", "exit 1")))
    assert states() == []
    assert not list((cache.root() / snapshot.KIND).iterdir())


def test_an_emulator_killed_by_a_full_disk_is_a_full_disk(machine, monkeypatch):
    """Its memory is a file with holes; it gets SIGBUS where one cannot be filled, and says nothing."""
    stand = SavingStand(steps=("say hello", "exit 1"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=4096))
    with pytest.raises(MissingError, match=r"the disk of .* is full \(0 MiB free\); free some space") as raised:
        run(machine, [JOB], through=stand)
    assert not isinstance(raised.value, MachineCrashed)
    assert states() == []


def test_it_can_be_left_out(machine):
    done = run(machine, [JOB], through=SavingStand(steps=GOOD), saved=False)
    assert not done.restored
    assert states() == []


def test_the_oldest_states_go(machine):
    from dataclasses import replace

    for number in range(3):
        run(replace(machine, memory=512 + number), [JOB], through=SavingStand())
    used_last = snapshot.key(replace(machine, memory=514), SavingStand())
    snapshot.prune(snapshot.KIND, 1)
    assert [entry.name for entry in states()] == [used_last]
