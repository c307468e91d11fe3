"""Three sources and their training loops: one waits, one holds the GIL, one augments photographs.

Each source is endless, gives whole batches, and numbers them through all shards: 0, 1, 2, ... with one shard,
``index``, ``index + count``, ... in each of several.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._job import Leaf, Workload
from benchmarks._photographs import photographs
from benchmarks._source import Source

GIL_MS = 40.0
SIDE = 224
BATCH = 32
_GRID = np.stack(np.meshgrid(*[np.arange(SIDE, dtype=np.float32)] * 2), axis=-1)  # (x, y) of every pixel


def article(shard: Any) -> Iterator[Any]:
    """0.5 s of waiting as for I/O, 10,000 steps of Python, and 48 MB of random float32."""
    for number in itertools.count(shard.index, shard.count):
        time.sleep(0.5)
        spin(10_000)
        images = shard.rng.random((4, 1_000_000, 3), dtype=np.float32)
        labels = shard.rng.random((4, 1), dtype=np.float32)
        labels[0, 0] = number
        yield images, labels


def gil(shard: Any, iterations: int) -> Iterator[Any]:
    """So many steps of Python that never let another thread run, and 4.8 MB of uint8."""
    for number in itertools.count(shard.index, shard.count):
        spin(iterations)
        yield np.full((1600, 1000, 3), number % 256, dtype=np.uint8), np.array([number])


def opencv(shard: Any, folder: str) -> Iterator[Any]:
    """32 photographs, each decoded, cropped, mirrored, colour-jittered and elastically deformed."""
    paths = sorted(Path(folder).glob("*.jpg"))
    chosen = _endless(list(shard.of(paths)), shard.rng)
    for number in itertools.count(shard.index, shard.count):
        images = np.empty((BATCH, SIDE, SIDE, 3), dtype=np.uint8)
        labels = np.empty(BATCH, dtype=np.int64)
        for i, path in enumerate(itertools.islice(chosen, BATCH)):
            images[i] = augmented(path, shard.rng)
            labels[i] = int(path.name[:2])
        yield images, labels, np.array([number])


def spin(iterations: int) -> int:
    """Pure Python that never lets the GIL go of itself."""
    total = 0
    for i in range(iterations):
        total += i & 3
    return total


def spin_iterations(target_ms: float) -> int:
    """How many steps of ``spin`` take so long where nothing else runs: the best of 100 tries."""
    iterations, best_s = 100_000, float("inf")
    for _ in range(100):
        begun = time.perf_counter()
        spin(iterations)
        took_s = time.perf_counter() - begun
        best_s = min(best_s, took_s / iterations)
        iterations = max(1, round(target_ms / 1e4 / best_s))
    return max(1, round(target_ms / 1e3 / best_s))


def augmented(path: Path, rng: np.random.Generator) -> Any:
    """One photograph as a training sample: 224×224 RGB."""
    import cv2

    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    image = _random_crop(image, rng)
    image = cv2.flip(image, 1) if rng.random() < 0.5 else image
    return _elastic(_jittered(image, rng), rng)


def _endless(items: list[Path], rng: np.random.Generator) -> Iterator[Path]:
    while True:
        yield from (items[i] for i in rng.permutation(len(items)))


def _random_crop(image: Any, rng: np.random.Generator) -> Any:
    import cv2

    height, width = image.shape[:2]
    side = int(min(height, width) * rng.uniform(0.6, 1.0))
    top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
    return cv2.resize(image[top : top + side, left : left + side], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def _jittered(image: Any, rng: np.random.Generator) -> Any:
    """Hue and saturation by curves from NumPy, brightness by a tone curve worked out in plain Python."""
    import cv2

    values = np.arange(256)
    hue = (values + rng.integers(-8, 9)) % 180
    saturation = np.clip(values * rng.uniform(0.7, 1.3), 0, 255)
    gamma = rng.uniform(0.8, 1.25)
    tone = [min(255, max(0, round(255 * (value / 255) ** gamma))) for value in range(256)]
    curves = np.stack([hue, saturation, tone], axis=-1).astype(np.uint8)[None]
    jittered = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), curves)
    return cv2.cvtColor(jittered, cv2.COLOR_HSV2RGB)


def _elastic(image: Any, rng: np.random.Generator) -> Any:
    """Displacements drawn on a coarse grid, smoothed by cubic interpolation (as in U-Net, 2015)."""
    import cv2

    coarse = rng.normal(0.0, 3.0, (7, 7, 2)).astype(np.float32)
    places = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    places += _GRID
    return cv2.remap(image, places, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)


def _article() -> Workload:
    leaves = (Leaf((4, 1_000_000, 3), "float32"), Leaf((4, 1), "float32"))
    return Workload("article", Source("benchmarks.workloads:article"), 8, 0.1, 50, leaves, numbered=True)


def _gil() -> Workload:
    source = Source("benchmarks.workloads:gil", {"iterations": spin_iterations(GIL_MS)})
    return Workload("gil", source, 2, 0.03, 100, (Leaf((1600, 1000, 3), "uint8"), Leaf((1,), "int64")), numbered=True)


def _opencv() -> Workload:
    source = Source("benchmarks.workloads:opencv", {"folder": str(photographs())})
    leaves = (Leaf((BATCH, SIDE, SIDE, 3), "uint8"), Leaf((BATCH,), "int64"), Leaf((1,), "int64"))
    return Workload("opencv", source, 2, 0.05, 60, leaves, numbered=True)


# Each does its set-up when called: the loop is timed, the photographs are written.
WORKLOADS: dict[str, Callable[[], Workload]] = {"article": _article, "gil": _gil, "opencv": _opencv}
