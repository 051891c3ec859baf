"""Settings, resolved against the modules that take them."""

from __future__ import annotations

import pytest

from lab.machines import kernel
from worldswitch.errors import UnknownNameError, UsageError
from worldswitch.lab import modules
from worldswitch.lab.settings import mmu, resolve


@pytest.fixture
def loaded(tmp_path):
    return modules.closure(kernel(tmp_path).modules, ["kvm_amd"])


def test_a_bare_name_goes_to_kvm_and_then_to_the_vendor(loaded):
    found = resolve({"nx_huge_pages": "never", "npt": "0"}, loaded)
    assert found.parameters == (("kvm", "nx_huge_pages", "never"), ("kvm_amd", "npt", "0"))


def test_each_module_gets_its_own(loaded):
    setup = resolve({"npt": "0", "kvm.tdp_mmu": "1", "favordynmods": "on"}, loaded).setup(loaded)
    assert setup.modules == (
        ("/lab/modules/irqbypass.ko", ()),
        ("/lab/modules/kvm.ko", ("tdp_mmu=1",)),
        ("/lab/modules/kvm_amd.ko", ("npt=0",)),
    )
    assert setup.requested == (("kvm_amd", "npt"), ("kvm", "tdp_mmu"))
    assert setup.favordynmods


@pytest.mark.parametrize(
    "settings",
    [{"npt": ""}, {"npt": "0 1"}, {"npt": "0\n"}, {"npt": "0", "kvm_amd.npt": "1"}, {"favordynmods": "maybe"}],
)
def test_values_that_cannot_be_are_refused(loaded, settings):
    with pytest.raises(UsageError):
        resolve(settings, loaded)


def test_an_unknown_parameter_names_its_neighbours(loaded):
    with pytest.raises(UnknownNameError, match="nx_huge_pages"):
        resolve({"nx_hugepages": "off"}, loaded)


@pytest.mark.parametrize(
    ("name", "cpu", "wanted"),
    [
        ("default", "amd", {}),
        ("tdp", "amd", {"kvm.tdp_mmu": "1", "kvm_amd.npt": "1"}),
        ("legacy", "intel", {"kvm.tdp_mmu": "0", "kvm_intel.ept": "1"}),
        ("shadow", "intel", {"kvm_intel.ept": "0"}),
    ],
)
def test_ways_to_page_are_parameters(name, cpu, wanted):
    assert mmu(name, cpu) == wanted


def test_unknown_ways_are_refused():
    with pytest.raises(UnknownNameError):
        mmu("ept", "intel")
    with pytest.raises(UnknownNameError):
        mmu("tdp", "arm")
