"""Where a consumer is in the stream, as plain data that survives JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


def is_count(value: Any) -> bool:
    """Whether a value of a state is a number of something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def changed() -> ValueError:
    """For a state that is not as it was taken."""
    return ValueError("this state of a feed was changed or cut short: pass what state_dict() returned")


@dataclass(frozen=True, slots=True)
class Position:
    """The place after ``taken`` elements of an epoch.

    Attributes:
        epoch: which pass over the data.
        taken: elements of it that come before.
        at: where a run begins, in its own words (``BaseRun.state``); None: at the epoch's beginning.
        discard: elements from there on that are made again and thrown away.
    """

    epoch: int
    taken: int = 0
    at: dict[str, Any] | None = None
    discard: int = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Position:
        """From the entries of a state.

        Raises:
            ValueError: they are not what ``entries`` gives.
        """
        numbers = [state["epoch"], state["taken"], state.get("discard", 0)]
        epoch, taken, discard = numbers
        at = state["at"]
        if not all(is_count(number) for number in numbers) or not (at is None or isinstance(at, dict)):
            raise changed()
        if discard > taken or (at is None and discard != taken):
            raise changed()
        return cls(epoch, taken, at, discard)

    def entries(self) -> dict[str, Any]:
        """For a state."""
        return asdict(self)


@dataclass(slots=True)
class Passage:
    """One iteration of a feed, for those who look on.

    Attributes:
        begin: where it began.
        taken: elements of its epoch that have been handed out, those before it included.
        over: whether nothing of the epoch is left.
    """

    begin: Position
    taken: int
    over: bool = False

    def after(self, taken: int) -> Position:
        """The place after so many elements of the epoch, which its beginning must not lie behind."""
        begin = self.begin
        return Position(begin.epoch, taken, begin.at, begin.discard + taken - begin.taken)
