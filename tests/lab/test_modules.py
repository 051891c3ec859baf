"""Dependencies and parameters of modules, from files made here."""

from __future__ import annotations

import gzip
import lzma

import pytest
import zstandard

from lab.machines import kernel, module
from worldswitch.errors import MissingError, UnknownNameError
from worldswitch.lab import modules


def test_the_order_is_one_they_load_in(tmp_path):
    files = kernel(tmp_path)
    assert [m.name for m in modules.closure(files.modules, ["kvm_amd"])] == ["irqbypass", "kvm", "kvm_amd"]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".xz", lzma.compress), (".gz", gzip.compress), (".zst", zstandard.compress)],
)
def test_compressed_modules_are_read(tmp_path, suffix, pack):
    path = tmp_path / f"kvm-amd.ko{suffix}"
    path.write_bytes(pack(module("kvm", ("npt",))))
    found = modules.load(path)
    assert (found.name, found.needs, found.parameters) == ("kvm_amd", ("kvm",), frozenset({"npt"}))
    assert found.data == module("kvm", ("npt",))
    assert found.release == "6.99.0"


@pytest.mark.parametrize("suffix", ["", ".xz", ".gz", ".zst"])
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\xfd7zXZ\0cut", module("kvm")[:100], b"\0" * 4096])
def test_a_damaged_module_is_a_clear_error(tmp_path, suffix, content):
    path = tmp_path / f"kvm.ko{suffix}"
    path.write_bytes(content)
    with pytest.raises(MissingError, match="not a whole kernel module"):
        modules.load(path)


def test_a_missing_dependency_names_who_needs_it(tmp_path):
    (tmp_path / "kvm-amd.ko").write_bytes(module("kvm,ccp"))
    (tmp_path / "kvm.ko").write_bytes(module(""))
    with pytest.raises(MissingError, match="ccp, which kvm_amd needs"):
        modules.closure(tmp_path, ["kvm_amd"])


def test_a_folder_without_modules_is_a_clear_error(tmp_path):
    with pytest.raises(MissingError, match="no kernel modules"):
        modules.find(tmp_path / "nowhere")


def test_a_build_takes_the_place_of_a_module(tmp_path):
    files = kernel(tmp_path)
    own = tmp_path / "kvm.ko"
    own.write_bytes(module("irqbypass", ("tdp_mmu", "mine")))
    found = modules.closure(files.modules, ["kvm_amd"], {"kvm": own})
    assert "mine" in found[1].parameters


def test_parameters_are_found_by_name(tmp_path):
    found = modules.closure(kernel(tmp_path).modules, ["kvm_amd"])
    assert modules.owner("npt", found) == "kvm_amd.npt"
    assert modules.owner("kvm-amd.npt", found) == "kvm_amd.npt"
    assert modules.owner("tdp_mmu", found) == "kvm.tdp_mmu"
    with pytest.raises(UnknownNameError, match=r"nearest: .*tdp_mmu"):
        modules.owner("tdp_mmuu", found)
    with pytest.raises(UnknownNameError):
        modules.owner("kvm.npt", found)
