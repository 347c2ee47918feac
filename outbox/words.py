"""Numbers in words, as commands print them."""


def counted(number: int, one: str) -> str:
    """The number and what it counts: ``1 row``, ``2 rows``; of several words the last one changes."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
