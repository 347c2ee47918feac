"""Processes that are not measured.

Coverage is written at the end of a process, so that of one that is killed is lost; yet being traced doubles its work.
"""

import os
from typing import Final

#: What a measured process hands on to its children (coverage's ``patch = subprocess``).
_HANDED_ON: Final = "COVERAGE_PROCESS_"


def untraced() -> dict[str, str]:
    """This process's environment, for a child that need not be measured."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_HANDED_ON)}
