from __future__ import annotations

from pathlib import Path

import pytest

from worldswitch.live.environment import here
from worldswitch.live.module import vendor_module


def host(root: Path, vendor: str = "GenuineIntel", flags: str = "vmx", **parameters: str) -> Path:
    """A root with cpuinfo and, for ``module__name="value"``, that parameter."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"vendor_id\t: {vendor}\nmodel name\t: Some CPU\nflags\t\t: fpu {flags}\n")
    for name, value in parameters.items():
        module, _, parameter = name.partition("__")
        folder = root / "sys/module" / module / "parameters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / parameter).write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        # Defaults of Linux 6.12 on Intel, of 5.10 on AMD, and what ept=0 and npt=0 read as.
        ({"kvm__tdp_mmu": "Y", "kvm_intel__ept": "Y"}, "tdp"),
        ({"kvm__tdp_mmu": "N", "kvm_amd__npt": "1"}, "legacy"),
        ({"kvm__tdp_mmu": "Y", "kvm_amd__npt": "0"}, "shadow"),
        ({"kvm__tdp_mmu": "N", "kvm_intel__ept": "N"}, "shadow"),
        ({"kvm__nx_huge_pages": "Y", "kvm_intel__ept": "Y"}, "legacy"),
        ({"kvm__tdp_mmu": "Y", "kvm_pvm__stats": "N"}, "shadow"),
        ({"kvm__tdp_mmu": "Y"}, None),
    ],
)
def test_the_parameters_tell_the_mmu(tmp_path: Path, parameters: dict[str, str], expected: str | None) -> None:
    assert here(host(tmp_path, flags="", **parameters)).dimensions["mmu"] == expected


def test_parameters_have_their_full_names(tmp_path: Path) -> None:
    around = here(host(tmp_path, kvm__tdp_mmu="Y", kvm_intel__ept="Y", kvm_amd__npt="1")).environment
    assert around.parameters == {"kvm.tdp_mmu": "Y", "kvm_intel.ept": "Y"}
    assert around.cpu_model == "Some CPU"


@pytest.mark.parametrize(("flags", "module"), [("vmx", "kvm_intel"), ("svm", "kvm_amd"), ("", "kvm_pvm")])
def test_of_several_modules_the_processors_own_answers(tmp_path: Path, flags: str, module: str) -> None:
    root = host(tmp_path, flags=flags, kvm_intel__ept="Y", kvm_amd__npt="1", kvm_pvm__stats="N")
    assert vendor_module(root) == module


def test_a_module_built_in_has_no_holders(tmp_path: Path) -> None:
    assert vendor_module(host(tmp_path, kvm__tdp_mmu="Y", kvm_pvm__stats="N")) == "kvm_pvm"


@pytest.mark.parametrize(
    ("vendor", "module", "expected"),
    [
        ("GenuineIntel", "kvm_intel", "intel"),
        ("HygonGenuine", "kvm_amd", "amd"),
        ("AuthenticAMD", "kvm_pvm", "amd"),
        ("CentaurHauls", "kvm_pvm", None),
    ],
)
def test_whose_exits_they_are(tmp_path: Path, vendor: str, module: str, expected: str | None) -> None:
    root = host(tmp_path, vendor, "", **{f"{module}__x": "1"})
    assert here(root).dimensions["cpu"] == expected


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    around, dimensions = here(tmp_path)
    assert (around.cpu_model, around.vendor_module, around.parameters) == (None, None, {})
    assert (dimensions["cpu"], dimensions["mmu"]) == (None, None)
