"""A training loop without a training: sources by name, and batches that are taken, timed and dropped.

The step is a sleep, as idle for the CPU as an accelerator at work. A batch is dropped after its step, as Keras does,
so that what the dropping costs is in the wall time and not in the next batch's wait.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def named(name: str) -> Any:
    """What ``module:name`` or ``module:name.attribute`` stands for.

    Raises:
        ValueError: there is no such thing.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ValueError(f"{name!r}: write module:name, for example my_data:batches")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module_name))
    except (AttributeError, ModuleNotFoundError) as error:
        raise ValueError(f"there is no {name!r}: {error}") from error


class Loop:
    """Takes batches one by one; a stream that ends is iterated again, as the next epoch.

    Args:
        stream: gives an iterator of batches each time it is asked.
        step_s: seconds of a training step.
        look: is shown each batch, outside the time that is waited.
    """

    def __init__(self, stream: Iterable[Any], step_s: float, look: Callable[[Any], None] | None = None) -> None:
        self._stream = stream
        self._iterator: Iterator[Any] = iter(stream)
        self._step_s = step_s
        self._look = look

    def take(self) -> float:
        """Seconds waited for the next batch; the step is over and the batch dropped on return."""
        begun = time.perf_counter()
        batch = self._next()
        waited = time.perf_counter() - begun
        if self._look is not None:
            self._look(batch)
        if self._step_s:
            time.sleep(self._step_s)
        return waited

    def drop(self) -> None:
        """Let go of the iterator, which ends what it runs, as a loop does that is left."""
        self._iterator = iter(())

    def _next(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self.drop()  # as a `for` loop does before the next one starts
            self._iterator = iter(self._stream)
        try:
            return next(self._iterator)
        except StopIteration:
            raise ValueError("the source gave no batch in a whole epoch") from None
