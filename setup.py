"""The build step pyproject.toml cannot say: compile the hot modules, each a .py with a .pxd beside it.

Every such module also runs uncompiled; where no C compiler is found the install still works, slower, and
``wsw --version`` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")

# A memoryview is a struct of 200 bytes passed by value: a helper called with three of them costs more than the work it
# does. So helpers are inlined where gcc alone would not; in the modules named, however large the loop grows.
FLAGS = ["-O3", "-g0", "-finline-limit=1000", "--param=max-inline-insns-auto=300"]
WHOLLY = ("worldswitch.trace.pairing", "worldswitch.trace.tally")
MORE = ["-finline-limit=20000", "--param=max-inline-insns-auto=3000"]
MORE += ["--param=inline-unit-growth=1000", "--param=large-function-growth=3000"]

# The model's hot modules call each other method by method, which inlining does not make faster, only slower to build.
PLAIN = ["-O2", "-g0"]

# What Cython adds to every module that takes memoryviews, once for all of them: it is most of what gcc has to compile.
SHARED = "worldswitch._cyutility"


def hot_modules() -> list[Extension]:
    """One optional extension for each .py that has a .pxd beside it."""
    extensions = []
    for types in sorted(SOURCE.rglob("*.pxd")):
        source = types.with_suffix(".py")
        if source.exists() and source.name != "__init__.py":
            name = ".".join(source.with_suffix("").relative_to(SOURCE).parts)
            flags = [*(FLAGS if ".trace." in name else PLAIN), *(MORE if name in WHOLLY else [])]
            extensions.append(Extension(name, [str(source)], extra_compile_args=flags, optional=True))
    return extensions


def compiled() -> list[Extension]:
    """All hot modules, translated; none where Cython is missing or ``WSW_PURE_PYTHON`` is set."""
    if os.environ.get("WSW_PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    shared = Extension(SHARED, [f"src/{SHARED.replace('.', '/')}.c"], extra_compile_args=["-O2", "-g0"], optional=True)
    built: list[Extension] = cythonize(
        [*hot_modules(), shared],
        shared_utility_qualified_name=SHARED,
        build_dir="build/cython",
        nthreads=os.cpu_count() or 1,
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
    )
    return built


setup(ext_modules=compiled(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
