from __future__ import annotations

import pytest

from worldswitch.errors import UsageError
from worldswitch.kit.words import features, programs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nop"], ["nop"]),
        (["nop,cpuid", "io"], ["nop", "cpuid", "io"]),
        (["a:x=1,y=2,b"], ["a:x=1,y=2", "b"]),
        (["a:x=1,b:y=2,z=3"], ["a:x=1", "b:y=2,z=3"]),
        (["my,file.toml"], ["my", "file.toml"]),
        (["dir/a.toml", "b.img"], ["dir/a.toml", "b.img"]),
        (["cr0-wp+cet, nop"], ["cr0-wp+cet", "nop"]),
    ],
)
def test_programs(words: list[str], expected: list[str]) -> None:
    assert list(programs(words)) == expected


@pytest.mark.parametrize("word", ["", ",", "a,,b", "a,", "x=1", "a,x=1"])
def test_programs_without_a_name(word: str) -> None:
    with pytest.raises(UsageError):
        list(programs([word]))


def test_features() -> None:
    assert features(["cpuid.PCID=0", "cpuid.smep=1"]) == {"pcid": False, "smep": True}


@pytest.mark.parametrize("word", ["pcid=0", "cpuid.pcid", "cpuid.pcid=", "cpuid.pcid=yes", "cpuid.nothing=1", "=1", ""])
def test_what_is_no_feature(word: str) -> None:
    with pytest.raises(UsageError):
        features([word])
