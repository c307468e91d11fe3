"""What the pipelines of ``benchmarks.pipeline`` do to an image, in Python; and the same work without a pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

SIDE = 224
SHAPE = (SIDE, SIDE, 3)


def load(path: bytes) -> Any:
    """The JPEG at a path, decoded and resized; the same each time."""
    import cv2

    image = cv2.imread(path.decode(), cv2.IMREAD_COLOR)
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def augment(image: Any, number: Any) -> Any:
    """Flipped, turned, zoomed and recoloured at random."""
    import cv2

    rng = np.random.default_rng(int(number))
    if rng.random() < 0.5:
        image = cv2.flip(image, 1)
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), rng.uniform(-15, 15), rng.uniform(1.0, 1.2))
    image = cv2.warpAffine(image, turn, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    hsv[..., 0] = (hsv[..., 0] + rng.integers(-9, 10)) % 180
    return cv2.convertScaleAbs(
        cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR), alpha=rng.uniform(0.8, 1.2), beta=rng.uniform(-20, 20)
    )


def unchanged(image: Any, number: Any) -> Any:
    """Nothing, so that what is left is the call."""
    return image


def holds_the_gil(image: Any, number: Any) -> Any:
    """Small NumPy operations and plain Python: about 4 ms in which no other thread of the process runs Python."""
    total = 0
    for k in range(24_000):
        total += (k ^ int(number)) & 7
    boxes = np.arange(64.0).reshape(16, 4)
    for _ in range(300):
        boxes = np.sqrt(boxes * boxes + 1.0)
    image = image.copy()
    image[0, 0] = total % 251, int(boxes[0, 0]), 0
    return image


def frees_the_gil(image: Any, number: Any) -> Any:
    """Large OpenCV operations, which let other threads run."""
    import cv2

    large = cv2.resize(image, (4 * SIDE, 4 * SIDE), interpolation=cv2.INTER_CUBIC)
    return cv2.resize(cv2.GaussianBlur(large, (0, 0), 3), (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def sample() -> Any:
    """An image of 150 kB."""
    return np.random.default_rng(0).integers(0, 255, SHAPE, np.uint8)


def bare(work: str) -> Iterator[tuple[Any, Any]]:
    """Batches of one image each, for a loop without any pipeline."""
    import cv2

    cv2.setNumThreads(1)
    image, function = sample(), globals()[work]
    for number in itertools.count():
        yield function(image, number)[None], np.array([number])
