"""The checks, a module for each subject, in the order in which findings of one severity are shown."""

# Each import registers its checks. They are named here one by one, and not looked for, so that the field kit's
# bundler sees what to take along.
from __future__ import annotations

# ruff: noqa: I001 - the order is that of the findings
from worldswitch.host.checks import presence as presence
from worldswitch.host.checks import nx as nx
from worldswitch.host.checks import vm_creation as vm_creation
from worldswitch.host.checks import cgroups as cgroups
from worldswitch.host.checks import mmu as mmu
from worldswitch.host.checks import security as security
from worldswitch.host.checks import memory as memory
from worldswitch.host.checks import processor as processor
from worldswitch.host.checks import idle as idle
from worldswitch.host.checks import realtime as realtime
from worldswitch.host.checks import kernel as kernel
from worldswitch.host.checks import statistics as statistics
