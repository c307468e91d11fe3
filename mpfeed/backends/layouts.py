"""Layouts are sent once: later messages of the same layout carry its number in the order of first use."""

from __future__ import annotations

from typing import Any

from mpfeed._layout import Layout
from mpfeed._messages import Reply

_REMEMBERED = 64


class SentLayouts:
    """The sender's side."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._latest: tuple[Layout | None, int] = None, 0

    def refer(self, layout: Layout) -> Layout | int:
        """What to send in place of a layout: itself the first time, then its number."""
        latest, number = self._latest
        if layout is latest:
            return number
        key = layout.key()
        known = self._numbers.get(key)
        if known is not None:
            self._latest = layout, known
            return known
        if len(self._numbers) < _REMEMBERED:
            self._numbers[key] = len(self._numbers)
        return layout

    def refer_all(self, reply: Reply) -> None:
        """The same for all messages of a reply."""
        for payload in reply.payloads:
            payload.layout = self.refer(payload.layout)  # type: ignore[assignment]


class SeenLayouts:
    """The receiver's side; it must see every message of the sender, in order."""

    def __init__(self) -> None:
        self._layouts: list[Layout] = []

    def resolve(self, sent: Layout | int) -> Layout:
        """The layout that was meant; the same object each time."""
        if isinstance(sent, int):
            return self._layouts[sent]
        if len(self._layouts) < _REMEMBERED:
            self._layouts.append(sent)
        return sent

    def resolve_all(self, reply: Reply) -> None:
        """The same for all messages of a reply."""
        for payload in reply.payloads:
            payload.layout = self.resolve(payload.layout)
