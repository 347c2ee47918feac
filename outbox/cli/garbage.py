"""How seldom the daemons look for garbage in cycles."""

import gc
from typing import Final

#: Objects made and not yet gone, after which the youngest are looked at; a pass has some thousand of them in flight,
#: and Python's own limit of 700 looks at each of these over and over. What it may keep for longer is a megabyte or two.
_YOUNG: Final = 20_000


def seldom() -> None:
    """For a process that does nothing else: leaves out what is loaded by now, and looks at the rest less often.

    A tenth of the relay's CPU time went there otherwise. Rows, messages and answers are no cycles: they go at once.
    """
    gc.collect()
    gc.freeze()
    _, *older = gc.get_threshold()
    gc.set_threshold(_YOUNG, *older)
