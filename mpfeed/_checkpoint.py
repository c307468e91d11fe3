"""``FeedCheckpoint``: the position of a feed beside the backup of the model. Needs Keras."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpfeed._errors import MpfeedError
from mpfeed._feed import Feed
from mpfeed._position import Passage, Position

try:
    import keras
except ImportError as error:
    raise ImportError("this needs Keras, which is not installed: pip install 'mpfeed[tf]'") from error

log = logging.getLogger("mpfeed")
_VERSION = 1
_KEPT = 64
_MOST_AHEAD = 1024  # elements that TensorFlow may reasonably have read ahead of training


class _Pause:
    """Ends a restored epoch where it would have ended; ``stop_training`` that anyone else sets replaces it."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A place that training has come to.

    Attributes:
        iterations: of the optimizer.
        epoch: of ``fit``.
        step: training steps of that epoch that come before.
        state: of the feed.
    """

    iterations: int
    epoch: int
    step: int
    state: dict[str, Any]


class FeedCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets a training that was killed go on with the batch it had come to, beside ``keras.callbacks.BackupAndRestore``.

    List it after the callback that restores the model. It keeps, by the optimizer's iterations, which elements of the
    feed the model was really trained on, whatever ``prefetch`` had taken beyond them. When training begins with a
    model of so many iterations, the feed goes on from there, in the epoch of ``fit`` that it belongs to. Any backup
    of the model will do: of an epoch's end or of a step in between (``save_freq=500``).

    It is exact where each training step takes the same number of elements in the feed's own order:
    ``feed.dataset()``, also with ``batch``, ``map``, ``prefetch`` and ``repeat`` after it. ``shuffle``, ``filter`` or
    ``cache`` after it change that; shuffle in ``from_map`` instead. In the middle of an epoch whose length is not known
    beforehand (``from_generator``, ``on_error="skip"``) Keras cannot go on, as it takes the rest for the length of all
    later epochs: there back the model up at the ends of epochs, or give ``fit`` ``steps_per_epoch``.

    Args:
        feed: that ``fit`` is trained with; ``ordered=True``.
        path: of a file for the positions, replaced as a whole at each write.
        elements_per_step: elements of the feed that a training step takes: 1 where the feed makes the batches, n for
            an unbatched feed with ``dataset.batch(n)``.
        delete_checkpoint: delete the file when ``fit`` has ended well, as ``BackupAndRestore`` does with its own.

    Raises:
        TypeError: ``elements_per_step`` is no whole number, or this is no feed.
        ValueError: ``elements_per_step`` is below 1.
        MpfeedError: ``ordered=False``; in ``fit``: there is no position for the model, or steps took another number of
            elements.
    """

    def __init__(
        self, feed: Feed, path: str | os.PathLike[str], elements_per_step: int = 1, *, delete_checkpoint: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(feed, Feed):
            raise TypeError(f"FeedCheckpoint needs a feed, not {type(feed).__name__}")
        if isinstance(elements_per_step, bool) or not isinstance(elements_per_step, int):
            raise TypeError(f"elements_per_step={elements_per_step!r}: give a whole number of at least 1")
        if elements_per_step < 1:
            raise ValueError(f"elements_per_step={elements_per_step}: give at least 1")
        self._feed = feed
        self._path = Path(path)
        self._elements = elements_per_step
        self._deletes = delete_checkpoint
        self._origin = feed.state_dict()  # a peek of Keras' at the data is not training
        self._anchors: list[_Anchor] = []
        self._begun: _Anchor | None = None  # where the epoch of `fit` that runs now, or its rest, began
        self._restored: int | None = None
        self._left: int | None = None  # steps of a restored epoch
        self._steps = 0  # of the epoch so far

    # ------------------------------------------------------------------------------------ what Keras calls

    def on_train_begin(self, logs: Any = None) -> None:
        """Let the feed begin where the model is."""
        iterations = self._iterations()
        self._anchors = [anchor for anchor in _read(self._path) if anchor.iterations <= iterations]
        begin = self._found(iterations)
        state = self._origin if begin is None else begin.state
        if self._feed.state_dict() != state:
            self._feed.load_state_dict(state)
        self._feed.passages = []
        self._begun = begin
        self._restored = iterations
        self._left = None
        if begin is not None:
            self.model._initial_epoch = begin.epoch  # as BackupAndRestore does
        elif iterations:
            log.warning(
                "the model has made %d steps, and %s keeps no position: the feed begins at its epoch %d",
                iterations, self._path, self._origin["epoch"],
            )  # fmt: skip

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write down where the epoch begins."""
        iterations = self._iterations()
        if self._restored not in (None, iterations):
            raise MpfeedError(
                "another callback restored the model after FeedCheckpoint had looked at it: list FeedCheckpoint after "
                "that one"
            )
        begun, self._begun = self._begun, None
        if self._restored is None or begun is None:
            begun = _Anchor(iterations, epoch, 0, self._anchors[-1].state if self._anchors else self._origin)
        self._check_epoch(begun, epoch)
        self._restored = None
        self._steps = 0
        self._mark(begun)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End the rest of a restored epoch after as many steps as are left of it."""
        self._steps = batch + 1
        if self._left is not None and batch + 1 >= self._left and not self.model.stop_training:
            self.model.stop_training = _Pause()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check what the steps took, and write down where the next epoch begins."""
        if isinstance(self.model.stop_training, _Pause):
            self.model.stop_training = False
        iterations = self._iterations()
        self._check_steps(iterations)
        place = self._next_pass() if self._passes() else self._place_now()
        self._mark(_Anchor(iterations, epoch + 1, 0, self._feed.state_at(place)))

    def on_train_end(self, logs: Any = None) -> None:
        """Let go of the feed, and of the file where it has done its work."""
        self._feed.passages = None
        self._origin = self._anchors[-1].state if self._anchors else self._origin
        if self._deletes:
            self._path.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ positions

    def _iterations(self) -> int:
        return int(self.model.optimizer.iterations)

    def _found(self, iterations: int) -> _Anchor | None:
        """Where a model of so many steps belongs: the last anchor before it, and as many steps as it made since."""
        if not self._anchors:
            if iterations and self._path.exists():
                raise MpfeedError(
                    f"the model has made {iterations} steps, and {self._path} keeps only positions of later ones: "
                    "restore the model's latest backup, or delete the file to begin the feed anew"
                )
            return None
        last = self._anchors[-1]
        if last.iterations == iterations:
            return last
        epoch, step = self._epoch_after(last, iterations)
        return _Anchor(iterations, epoch, step, self._feed.state_at(self._place_after(last, iterations, epoch)))

    def _epoch_after(self, last: _Anchor, iterations: int) -> tuple[int, int]:
        """(epoch of ``fit``, steps of it) so many steps after an anchor."""
        steps, length = last.step + iterations - last.iterations, self.params.get("steps")
        if length:
            return last.epoch + steps // length, steps % length
        if (getattr(self.model, "_initial_epoch", None) or 0) > last.epoch:
            return last.epoch + 1, 0
        if last.epoch + 1 < self.params.get("epochs", 1):
            raise MpfeedError(
                f"the model was backed up {steps} steps into epoch {last.epoch}, and Keras cannot go on in the middle "
                "of an epoch of unknown length: it would take the rest of this epoch for the length of all later ones. "
                "Back the model up at the ends of epochs, or give fit steps_per_epoch and a dataset with repeat()"
            )
        return last.epoch, steps

    def _place_after(self, last: _Anchor, iterations: int, epoch: int) -> Position:
        """Where the feed is so many steps after an anchor."""
        begin, steps, length = Position.of(last.state), iterations - last.iterations, self._feed.certain_length()
        if length is None:
            if epoch > last.epoch and not self.params.get("steps"):
                return Position(begin.epoch + 1)
            return Passage(begin, begin.taken).after(begin.taken + steps * self._elements)
        if self._passes() and epoch > last.epoch:
            return Position(begin.epoch + epoch - last.epoch)
        beyond, taken = divmod(begin.taken + steps * self._elements, max(length, 1))
        return self._feed.position_after(Passage(Position(begin.epoch + beyond), 0), taken)

    def _passes(self) -> bool:
        """Whether each epoch of ``fit`` is one of the feed, whose last step may be short or left out."""
        steps, length = self.params.get("steps"), self._feed.certain_length()
        if not steps:
            return True
        return length is not None and steps in (length // self._elements, -(-length // self._elements))

    def _followed(self) -> tuple[list[Passage], Position]:
        """(what was handed out since the epoch began, where it began)."""
        passages = self._feed.passages
        if not passages:
            raise MpfeedError("fit takes no elements of this feed: give it feed.dataset(), or FeedCheckpoint its feed")
        return passages, Position.of(self._anchors[-1].state)

    def _next_pass(self) -> Position:
        """The feed's next epoch, for the next one of ``fit``."""
        passages, _ = self._followed()
        epoch = passages[0].begin.epoch
        passages.clear()
        return Position(epoch + 1)

    def _place_now(self) -> Position:
        """Where the feed is after the steps of this epoch, which may have begun and ended within one of the feed's."""
        passages, begin = self._followed()
        left, taken = self._steps * self._elements, max(begin.taken, passages[0].begin.taken)
        while len(passages) > 1 and taken + left > passages[0].taken:
            left -= passages[0].taken - taken
            del passages[0]
            taken = passages[0].begin.taken
        place = self._feed.position_after(passages[0], taken + left)
        if place.epoch > passages[0].begin.epoch:
            del passages[0]
        return place

    def _check_epoch(self, begun: _Anchor, epoch: int) -> None:
        if begun.epoch != epoch:
            raise MpfeedError(
                f"fit begins with epoch {epoch}, and {self._path} says that the model belongs to epoch {begun.epoch}: "
                f"give fit initial_epoch={begun.epoch}, or delete the file to begin anew"
            )
        length = self.params.get("steps")
        self._left = length - begun.step if length and begun.step else None

    def _check_steps(self, iterations: int) -> None:
        """MpfeedError where the epoch that ends now took another number of elements than its steps account for."""
        passages, begin = self._followed()
        made = iterations - self._anchors[-1].iterations
        if made < self._steps:
            raise MpfeedError(
                f"the optimizer counted {made} of {self._steps} steps (as with gradient accumulation, or a loss scale "
                "that leaves steps out), so the feed's position cannot be told from the model"
            )
        taken = max(begin.taken, passages[0].begin.taken) + self._steps * self._elements
        handed = sum(passage.taken - passage.begin.taken for passage in passages) + passages[0].begin.taken
        most = self._elements - 1 if not self.params.get("steps") else _MOST_AHEAD
        if taken - handed >= self._elements or (passages[-1].over and handed - taken > most):
            raise MpfeedError(
                f"the epoch had {self._steps} steps, and the feed handed out {handed - passages[0].begin.taken} "
                f"elements where elements_per_step={self._elements}: give FeedCheckpoint how many elements a step "
                "takes; where that changes from step to step (filter), a position cannot be told"
            )

    def _mark(self, anchor: _Anchor) -> None:
        """Keep an anchor, in place of one at the same step."""
        kept = [one for one in self._anchors if one.iterations < anchor.iterations]
        self._anchors = [*kept, anchor][-_KEPT:]
        _write(self._path, self._anchors)


def _read(path: Path) -> list[_Anchor]:
    """The anchors in a file; none where there is no file.

    Raises:
        MpfeedError: it is another file.
    """
    try:
        content = json.loads(path.read_text())
        if content["version"] != _VERSION:
            raise MpfeedError(f"{path} has version {content['version']}, this mpfeed reads {_VERSION}")
        return [_Anchor(**anchor) for anchor in content["positions"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise MpfeedError(f"{path} is no file of FeedCheckpoint's ({error}): give it a path of its own") from error


def _write(path: Path, anchors: list[_Anchor]) -> None:
    """Replace the file as a whole, so that whoever is killed meanwhile finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.new")  # one that a killed process left is written over
    with open(written, "w") as file:
        json.dump({"version": _VERSION, "positions": [asdict(anchor) for anchor in anchors]}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(written, path)
