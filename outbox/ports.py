"""Ports in a broker's URL."""


def is_port(text: str) -> bool:
    """Whether the text is a port; a resolver takes a number beyond 16 bits for another, smaller one."""
    return text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16
