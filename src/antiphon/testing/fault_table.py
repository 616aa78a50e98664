"""The faults that are provoked here, and what each of them does: data, nothing else.

`docs/faults.md` is made of it, `antiphon faults` prints it, and the tests of `tests/faults` read
from it what they expect, so that the three cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.testing.fault_processes import PROCESSES
from antiphon.testing.fault_row import OK, Fault, Health, Level, Target
from antiphon.testing.fault_starts import STARTS
from antiphon.testing.fault_surroundings import SURROUNDINGS

__all__ = ["FAULTS", "FAULTS_LIST", "OK", "Fault", "Health", "Level", "Target"]

FAULTS_LIST = PROCESSES + STARTS + SURROUNDINGS
FAULTS: Mapping[str, Fault] = {fault.id: fault for fault in FAULTS_LIST}
