"""A small CNN learns scikit-learn's handwritten digits; every image is deformed anew by Python and OpenCV.

For each backend asked for, the same network is trained on the same stream of images, and the program prints what
share of the training loop's time went into waiting for the next batch. The loop is written out so that this wait
can be timed where it happens; ``model.fit(feed.dataset(), epochs=...)`` reads the feed in the same way.

With 2 cores the workers and the training step share them. On an accelerator the step leaves the CPU to the workers.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import cv2
import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", action="append", help="inprocess, process or ray; repeatable; default: all three")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--samples", type=int, help="train on the first so many only")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

SIDE = 16
digits = load_digits()
images, held_out, labels, held_out_labels = train_test_split(
    digits.images.astype(np.float32) / 16, digits.target, test_size=0.2, random_state=0, stratify=digits.target
)
SAMPLES = list(zip(images, labels, strict=True))[: args.samples]


def enlarged(image):
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC).clip(0, 1)[..., np.newaxis]


def deformed(sample, rng):
    """Elastic deformation: every pixel is fetched from where a smooth random field points to."""
    image, label = sample
    field = cv2.GaussianBlur(rng.uniform(-1, 1, (SIDE, SIDE, 2)).astype(np.float32), (0, 0), 3.0) * 10
    map_x, map_y = np.empty((2, SIDE, SIDE), np.float32)
    for y in range(SIDE):  # plain Python on purpose: it holds the GIL, as real preprocessing so often does
        for x in range(SIDE):
            map_x[y, x] = x + field[y, x, 0]
            map_y[y, x] = y + field[y, x, 1]
    return cv2.remap(enlarged(image), map_x, map_y, cv2.INTER_LINEAR)[..., np.newaxis], label


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    steps = args.epochs * (len(SAMPLES) // args.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, max(steps, 1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def trained(model, dataset):
    """Train for all epochs; (seconds in all, seconds of them in waiting for the next batch)."""
    began, waited = time.perf_counter(), 0.0
    for _ in range(args.epochs):
        asked = time.perf_counter()
        for x, y in dataset:
            waited += time.perf_counter() - asked
            model.train_on_batch(x, y)
            asked = time.perf_counter()
        waited += time.perf_counter() - asked  # the end of the epoch is waited for too
    return time.perf_counter() - began, waited


FIRST = np.stack([enlarged(image) for image, _ in SAMPLES[: args.batch_size]]), labels[: args.batch_size]
for backend in args.backend or ("inprocess", "process", "ray"):
    model = network()
    model.train_on_batch(*FIRST)  # builds the training step before the clock starts
    with mpfeed.from_map(
        deformed, SAMPLES, shuffle=True, backend=backend, workers=1 if backend == "inprocess" else args.workers,
        batch_size=args.batch_size, drop_remainder=True, epochs=args.epochs,
    ) as feed:  # fmt: skip
        whole_s, waited_s = trained(model, feed.dataset())
    accuracy = model.evaluate(np.stack([enlarged(image) for image in held_out]), held_out_labels, verbose=0)[1]
    print(
        f"{backend}: waited {waited_s:.2f} s of {whole_s:.2f} s ({waited_s / whole_s:.1%}) in {args.epochs} epochs; "
        f"accuracy on {len(held_out)} held-out digits {accuracy:.4f}",
        flush=True,
    )
