"""A few programs on real kernels in real emulators; and that the named differences are still there."""

from __future__ import annotations

import pytest

from worldswitch.conform.batch import Rig
from worldswitch.conform.named import Named, explained, named
from worldswitch.conform.seen import differences, not_compared
from worldswitch.conform.session import Plan, conform, expect_without
from worldswitch.guest.assemble import assemble
from worldswitch.guest.toml import loads
from worldswitch.kvm.policy import Policy
from worldswitch.lab import artifacts, settings
from worldswitch.lab.emulator import emulator
from worldswitch.lab.machine import Machine

FEW = 10
RUNS = 5


def _machine(line: str, cpu: str, mmu: str) -> Machine:
    from worldswitch.cli.lab_kit import lab_kit

    try:
        kernel = artifacts.kernel(line)
    except artifacts.MissingError as missing:
        pytest.skip(str(missing))
    return Machine(kernel, cpu, settings.paging(mmu, cpu, {}), kit=lab_kit())


@pytest.mark.parametrize(
    ("line", "cpu", "mmu"),
    [
        pytest.param("6.12", "amd", "default", marks=pytest.mark.needs("lab-amd")),
        pytest.param("6.1", "intel", "shadow", marks=pytest.mark.needs("lab-intel")),
    ],
)
def test_random_programs_are_as_the_model_says(line: str, cpu: str, mmu: str) -> None:
    machine = _machine(line, cpu, mmu)
    model = emulator(cpu, machine.kernel.release).model
    found = conform(Plan(FEW, minimize=0), machine, mmu, model, lambda _: None)
    assert (found.ran, found.failed, found.why) == (FEW, {}, "")
    assert [(one.name, [str(each) for each in one.found]) for one in found.unexplained] == []


@pytest.mark.needs("lab-amd")
@pytest.mark.parametrize("one", named(), ids=lambda one: one.id)
def test_a_named_difference_is_still_seen_in_its_program(one: Named) -> None:
    """Else it explains nothing any more, and has to go."""
    line, cpu, mmu = one.kernels[0] if one.kernels else "6.12", one.cpus[0], one.mmus[0]
    machine = _machine(line, cpu, mmu)
    program, version = loads(one.program), machine.kernel.version
    policy, image = Policy.of(version, cpu, mmu, []), assemble(program)

    # A host's interrupt in the wrong moment takes a difference away from one run.
    (ran,) = Rig(machine, lambda _: None).run([image], RUNS)
    ignored, names = not_compared(program), set()
    for real in ran.runs:
        expect = expect_without(program, policy, image, real)
        if differences(expect(frozenset()), real, ignored):
            names.add(explained(expect, real, ignored, (version, cpu, mmu)))
    assert names == {one.id}
