"""The state of a feed: plain data that says where its consumer is, and of which stream."""

from __future__ import annotations

from typing import Any

from mpfeed._options import Options
from mpfeed._plans import FeedPlan
from mpfeed._position import Position, changed
from mpfeed._split import Part

_VERSION = 1
_ENTRIES = {"version", "fingerprint", "epoch", "taken", "at"}


def state_of(fingerprint: dict[str, Any], position: Position) -> dict[str, Any]:
    """The state of a consumer that is there, JSON-safe."""
    return {"version": _VERSION, "fingerprint": fingerprint, **position.entries()}


def fingerprint(plan: FeedPlan, options: Options, seed: int, part: Part) -> dict[str, Any]:
    """What defines the stream that a part of a feed delivers, by the names users know."""
    return {
        **plan.fingerprint(), "seed": seed, "batch_size": options.batch_size,
        "drop_remainder": options.drop_remainder, "vary_epochs": options.vary_epochs,
        "split": None if part.count == 1 else [part.index, part.count, part.remainder],
    }  # fmt: skip


def fingerprint_in(state: Any) -> dict[str, Any]:
    """The fingerprint that a state was taken with.

    Raises:
        ValueError: this is no state, or one of another version of mpfeed.
    """
    if not isinstance(state, dict) or not state.keys() >= _ENTRIES:
        raise ValueError("this is not a state of a feed: pass what state_dict() returned")
    if state["version"] != _VERSION:
        raise ValueError(f"the state has version {state['version']}, this mpfeed reads {_VERSION}")
    there = state["fingerprint"]
    if not isinstance(there, dict):
        raise changed()
    return there


def compare(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Refuse a state of another stream.

    Raises:
        ValueError: naming what differs.
    """
    differing = [name for name in here if here[name] != there.get(name)]
    if differing:
        words = "; ".join(f"{name} was {there.get(name)!r} and is {here[name]!r}" for name in differing)
        raise ValueError(f"the state is of another stream: {words}")
