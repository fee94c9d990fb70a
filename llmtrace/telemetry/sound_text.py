"""Text that every backend can take."""

from __future__ import annotations


def sound(text: str) -> str:
    """Return *text* with a question mark for what is half a character (a lone surrogate).

    File names that are no UTF-8 hold such, and text cut in the middle does. UTF-8 has none of
    them, so one of them makes a whole message or line unreadable.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
