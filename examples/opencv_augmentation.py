"""Photographs decoded and augmented with OpenCV in worker processes, as a tf.data.Dataset.

The photographs are those that scikit-image brings along. Both forms of a source are here: a generator that draws
from ``shard.rng``, and (``--form map``) a function of one item that draws from ``rng``. Either way the random
numbers come from (seed, epoch, shard or item) alone: run it twice, and the printed checksum is the same.
"""

import argparse
import hashlib
from pathlib import Path

import cv2
import numpy as np
import skimage

import mpfeed

NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png", "rocket.jpg")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--form", choices=("generator", "map"), default="generator")
parser.add_argument("--backend", default="process", help="inprocess, process or ray")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--repeats", type=int, default=32, help="how often each photograph comes in an epoch")
parser.add_argument("--side", type=int, default=224, help="of the square images, in pixels")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--save", type=Path, help="write the first batch as one picture to this file")
args = parser.parse_args()

FOLDER = Path(skimage.__file__).parent / "data"
SIDE = args.side
SAMPLES = [(str(FOLDER / name), label) for label, name in enumerate(NAMES)] * args.repeats


def augmented(path, rng):
    """A random crop, perhaps mirrored, turned a little, with another brightness and saturation: RGB, uint8."""
    image = cv2.imread(path)
    height, width = image.shape[:2]
    side = int(min(height, width) * rng.uniform(0.5, 1.0))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    image = cv2.resize(image[top : top + side, left : left + side], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    if rng.random() < 0.5:
        image = cv2.flip(image, 1)
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), rng.uniform(-15, 15), 1.1)
    image = cv2.warpAffine(image, turn, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(np.float32)
    hsv[..., 1:] *= rng.uniform(0.7, 1.3, size=2)
    return cv2.cvtColor(hsv.clip(0, 255).astype(np.uint8), cv2.COLOR_HSV2RGB)


def generator(shard):
    for path, label in shard.of(SAMPLES):
        yield {"image": augmented(path, shard.rng), "label": label}


def function(sample, rng):
    path, label = sample
    return {"image": augmented(path, rng), "label": label}


options = {"backend": args.backend, "workers": args.workers, "batch_size": args.batch_size, "seed": 7, "epochs": 1}
if args.form == "generator":
    feed = mpfeed.from_generator(generator, **options)
else:
    feed = mpfeed.from_map(function, SAMPLES, shuffle=True, **options)

with feed:
    digest, images = hashlib.sha256(), 0
    for number, batch in enumerate(feed.dataset()):
        pixels = batch["image"].numpy()
        digest.update(pixels.tobytes())
        images += len(pixels)
        if number == 0 and args.save:
            sheet = np.vstack([np.hstack(pixels[i : i + 4]) for i in range(0, len(pixels) - 3, 4)])
            cv2.imwrite(str(args.save), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    print(f"{images} images of {SIDE}x{SIDE}, sha256 {digest.hexdigest()[:16]}")
    print(feed.stats())
