"""Bounds of everything that a party sends. A message beyond them is refused; a text that is only shown is cut."""

from __future__ import annotations

import re

__all__ = [
    "LATEST_SECOND", "MAX_CLASSES", "MAX_CODECS", "MAX_DIMENSION", "MAX_MODELS", "MAX_NAME", "MAX_TEXT", "MAX_VALUE",
    "is_name", "printable",
]  # fmt: skip

MAX_TEXT = 1000  # characters of a message that is shown or logged
MAX_NAME = 256  # characters of a party, a class, a model hash, a codec
MAX_CLASSES = 100_000
MAX_MODELS = 1000
MAX_CODECS = 64
MAX_DIMENSION = 1 << 20  # of an embedding: a row fits a message, and the handshake fuses two of them
# Absolute value of a number in an embedding. Encoders stay far below; sums, products and squares of float32 numbers
# within this bound stay finite.
MAX_VALUE = 1e12
LATEST_SECOND = 253_402_300_799  # since 1970: the end of the year 9999, the latest that a certificate can state

# C0 and C1 controls, line separators, surrogates, and marks that change the direction of a line. The joiners that some
# scripts need are allowed.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, limit: int = MAX_TEXT) -> str:
    r"""Return a text with control characters replaced by spaces, cut to `limit` characters.

    Examples
    --------
    >>> printable("its disk is full"), printable("a\x1b[2Jb\n"), printable("x" * 5000, 3)
    ('its disk is full', 'a [2Jb ', 'xxx… (5000 characters)')
    """
    cut = CONTROL.sub(" ", text[:limit])
    return cut if len(text) <= limit else f"{cut}… ({len(text)} characters)"


def is_name(text: str) -> bool:
    """Whether a text can name a party, a class, a model or a codec: 1 to `MAX_NAME` characters, none a control."""
    return 0 < len(text) <= MAX_NAME and CONTROL.search(text) is None
