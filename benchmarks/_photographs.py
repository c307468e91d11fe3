"""A few hundred JPEGs of 500×375, made once of the photographs that scikit-image brings along."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ORIGINALS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)
WIDTH, HEIGHT, COUNT = 500, 375, 256
QUALITY = 90


def photographs() -> Path:
    """The folder of the JPEGs, written if it is not there yet; ``03-0123.jpg`` is a view of original 3."""
    folder = _cache() / f"photographs-{COUNT}-v1"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".photographs-", dir=folder.parent))
    try:
        _write(unfinished)
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another run was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _cache() -> Path:
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").exists() and os.access(checkout, os.W_OK):
        return checkout / ".data"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpfeed-benchmarks"


def _write(folder: Path) -> None:
    import cv2

    rng = np.random.default_rng(0)
    originals = list(_originals())
    for number in range(COUNT):
        kind = number % len(originals)
        path = str(folder / f"{kind:02d}-{number:04d}.jpg")
        if not cv2.imwrite(path, _view(originals[kind], rng), [cv2.IMWRITE_JPEG_QUALITY, QUALITY]):
            raise OSError(f"{path} could not be written")


def _originals() -> Iterator[Any]:
    import cv2
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    for name in ORIGINALS:
        image = cv2.imread(str(folder / name))
        if image is None:
            raise FileNotFoundError(f"scikit-image's {name} is not in {folder}: pip install 'scikit-image>=0.24'")
        yield image


def _view(image: Any, rng: np.random.Generator) -> Any:
    """A random part of a photograph in the proportions of 4:3, perhaps mirrored, at 500×375."""
    import cv2

    height, width = image.shape[:2]
    part_height = int(min(height, width * HEIGHT / WIDTH) * rng.uniform(0.7, 1.0))
    part_width = min(width, round(part_height * WIDTH / HEIGHT))
    top = int(rng.integers(height - part_height + 1))
    left = int(rng.integers(width - part_width + 1))
    part = image[top : top + part_height, left : left + part_width]
    part = cv2.flip(part, 1) if rng.random() < 0.5 else part
    return cv2.resize(part, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA if part_width > WIDTH else cv2.INTER_CUBIC)
