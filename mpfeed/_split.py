"""Parts of a feed: which elements of the stream each delivers. See ``Feed.split``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Part:
    """Which elements of the stream a feed delivers: ``index``, ``index + count``, ...

    Attributes:
        remainder: what becomes of the elements that are left where they cannot be dealt evenly: "drop", "pad", "keep".
    """

    index: int = 0
    count: int = 1
    remainder: str = "drop"

    def length(self, total: int) -> int:
        """How many of ``total`` elements this part delivers."""
        if self.count == 1:
            return total
        if self.remainder == "drop":
            return total // self.count
        if self.remainder == "pad":
            return -(-total // self.count) if total else 0
        return len(range(self.index, total, self.count))


WHOLE = Part()


def parts(n: Any, remainder: Any) -> list[Part]:
    """The parts of a split into ``n``.

    Raises:
        TypeError: ``n`` is no whole number.
        ValueError: it is below 1, or there is no such remainder.
    """
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
        raise TypeError(f"split({n!r}): give a whole number of at least 1")
    if n < 1:
        raise ValueError(f"split({n}): give at least 1")
    if remainder not in ("drop", "pad", "keep"):
        raise ValueError(f'remainder={remainder!r}: choose "drop", "pad" or "keep"')
    return [Part(i, int(n), remainder) for i in range(n)]
