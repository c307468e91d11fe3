"""A generator that holds the GIL, run by worker processes and read as a tf.data.Dataset."""

import sys

import numpy as np

import mpfeed

SAMPLES = range(int(sys.argv[1]) if len(sys.argv) > 1 else 512)


def source(shard):
    for number in shard.of(SAMPLES):  # this shard's part: the parts are disjoint, and complete together
        image = shard.rng.normal(number, 1.0, size=(64, 64, 3)).astype(np.float32)
        yield {"image": image, "label": number % 10}


with mpfeed.from_generator(source, workers=2, batch_size=32) as feed:
    for batch in feed.dataset():
        print(batch["image"].shape, batch["label"].numpy()[:4])
    print(feed.stats())
