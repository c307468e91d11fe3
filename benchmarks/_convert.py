"""One row of ``benchmarks.convert``, in a process of its own: samples converted, and epochs read."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MODES = ("live", "tfrecord", "tfrecord GZIP", "save", "cache")
SIDE = 160
BATCH = 32


def _function(kind: str) -> Any:
    import cv2

    def light(path: str) -> Any:
        """Decoded and made smaller: large calls of OpenCV."""
        image = cv2.imread(path)
        return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    def heavy(path: str) -> Any:
        """And cleaned of noise, which takes a CPU tens of milliseconds."""
        return cv2.bilateralFilter(cv2.medianBlur(light(path), 5), 15, 60, 60)

    return {"light": light, "heavy": heavy}[kind]


def measure(mode: str, kind: str, workers: int, samples: int, folder: Path) -> dict[str, Any]:
    """Seconds of the conversion and of each of three epochs, and bytes on disk."""
    import mpfeed
    from benchmarks._photographs import photographs

    files = sorted(str(path) for path in photographs().iterdir())
    items = [files[number % len(files)] for number in range(samples)]
    with mpfeed.from_map(_function(kind), items, workers=workers) as feed:
        feed.element_spec  # noqa: B018 - the workers are up before the clock starts
        begun = time.perf_counter()
        dataset = _converted(mode, feed, folder)
        convert_s = time.perf_counter() - begun
        epochs = [_epoch(dataset, samples) for _ in range(4)]
    if mode == "cache":
        convert_s, epochs = epochs[0], epochs[1:]  # the first epoch fills it
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"convert_s": convert_s if mode != "live" else 0.0, "epochs_s": epochs[-3:], "nbytes": nbytes}


def _converted(mode: str, feed: Any, folder: Path) -> Any:
    import tensorflow as tf

    import mpfeed

    if mode in ("tfrecord", "tfrecord GZIP"):
        compression = "GZIP" if mode.endswith("GZIP") else None
        mpfeed.tfrecord.write(feed, folder / "records", compression=compression, progress=False)
        return mpfeed.tfrecord.read(folder / "records")
    if mode == "save":
        feed.dataset().save(str(folder / "saved"))
        return tf.data.Dataset.load(str(folder / "saved"))
    return feed.dataset().cache() if mode == "cache" else feed.dataset()


def _epoch(dataset: Any, samples: int) -> float:
    begun = time.perf_counter()
    seen = sum(int(batch.shape[0]) for batch in dataset.batch(BATCH).prefetch(2))
    took_s = time.perf_counter() - begun
    if seen != samples:
        raise RuntimeError(f"{seen} of {samples} samples")
    return took_s


if __name__ == "__main__":
    mode, kind, workers, samples, folder = sys.argv[1:]
    print(json.dumps(measure(mode, kind, int(workers), int(samples), Path(folder))))
    sys.stdout.flush()
    os._exit(0)
