"""Random numbers that depend on (seed, epoch, item or shard) alone.

Every ``Generator`` comes of a ``numpy.random.SeedSequence`` whose entropy is the feed's seed and whose spawn key says
what it is for, so that no two of them repeat each other (NumPy: "Parallel random number generation"). The generators
that code reaches without asking are seeded for each item: by a hash of the same, which is quicker.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

SHARD, ITEM, ORDER, CALL = range(4)


def draw_seed() -> int:
    """A seed from the operating system, for ``seed=None``."""
    return secrets.randbits(63)


def sequence(seed: int, *key: int) -> np.random.SeedSequence:
    """The seed sequence of one purpose: ``key`` starts with one of this module's constants."""
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def generator(seed: int, *key: int) -> np.random.Generator:
    """``numpy.random.default_rng`` of one purpose."""
    return np.random.default_rng(sequence(seed, *key))


def _digest(*key: int) -> tuple[int, int, int]:
    """Numbers of 64, 32 and 31 bits that depend on the key alone."""
    text = ",".join(map(str, key))
    bits = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    return bits >> 64, bits & 0xFFFFFFFF, bits >> 32 & 0x7FFFFFFF


class LegacyRandom:
    """The generators that code reaches without asking: ``random``, legacy ``np.random`` and OpenCV's.

    One instance seeds them all from one hash. OpenCV's is per thread and cannot be read back, so it is
    seeded but not part of ``state``; where OpenCV is imported only later, ``watch_cv2`` seeds it then.
    """

    def __init__(self) -> None:
        self._cv2_seed: int | None = None

    def seed(self, seed: int, *key: int) -> None:
        """Seed all of them for one purpose."""
        words = _digest(seed, *key)
        random.seed(words[0])
        np.random.seed(words[1])
        self._cv2_seed = words[2]
        self.seed_cv2()

    def seed_cv2(self) -> None:
        """Seed OpenCV's generator of this thread, where OpenCV is there."""
        cv2 = sys.modules.get("cv2")
        if self._cv2_seed is not None and hasattr(cv2, "setRNGSeed"):
            cv2.setRNGSeed(self._cv2_seed)  # type: ignore[union-attr]

    def state(self) -> tuple[Any, Any]:
        """Where ``random`` and ``np.random`` are."""
        return random.getstate(), np.random.get_state()

    def restore(self, state: tuple[Any, Any]) -> None:
        """Put ``random`` and ``np.random`` back where they were."""
        random.setstate(state[0])
        np.random.set_state(state[1])

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Within, they are mpfeed's; afterwards the caller's again."""
        state = self.state()
        finder = _Cv2Finder(lambda _: self.seed_cv2())
        if "cv2" not in sys.modules:
            sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
            self.restore(state)


class _Cv2Finder:
    """Calls back once OpenCV has been imported: seeding and thread limits must hold from its first use.

    A meta path finder by its methods; importlib.abc would take 30 ms to import.
    """

    def __init__(self, imported: Any) -> None:
        self._imported = imported

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "cv2":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("cv2")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._imported(sys.modules["cv2"])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch_cv2(imported: Any) -> None:
    """Call ``imported(cv2)`` as soon as OpenCV is imported in this process (now, if it is)."""
    if "cv2" in sys.modules:
        imported(sys.modules["cv2"])
    else:
        sys.meta_path.insert(0, _Cv2Finder(imported))
