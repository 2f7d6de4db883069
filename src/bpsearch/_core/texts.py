"""Texts that come from files, made fit for a message or a terminal."""


def printable(text: object) -> str:
    """A text on one line that does nothing to a terminal, however it came about."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def show(value: object, length: int = 200) -> str:
    """A text as part of a message: printable, and cut after `length` characters."""
    text = printable(value)
    return text if len(text) <= length else text[:length] + "…"
