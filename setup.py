"""The build step pyproject.toml cannot say: compile the hot modules, each a .py with a .pxd beside it.

Every such module also runs uncompiled; where no C compiler is found the install still works, slower, and
``wsw --version`` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")


def hot_modules() -> list[Extension]:
    """One optional extension for each .py that has a .pxd beside it."""
    extensions = []
    for types in sorted(SOURCE.rglob("*.pxd")):
        source = types.with_suffix(".py")
        if source.exists() and source.name != "__init__.py":
            name = ".".join(source.with_suffix("").relative_to(SOURCE).parts)
            extensions.append(Extension(name, [str(source)], extra_compile_args=["-O3", "-g0"], optional=True))
    return extensions


def compiled() -> list[Extension]:
    if os.environ.get("WSW_PURE_PYTHON"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    built: list[Extension] = cythonize(
        hot_modules(),
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
