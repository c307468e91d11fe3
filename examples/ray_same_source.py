"""The same source in worker processes and in Ray actors: one argument changes, and not one bit of the stream.

``mpfeed.Ray()`` uses the Ray that this program is connected to, or starts one on this machine; with
``mpfeed.Ray(address="auto")`` the actors run on the nodes of a cluster.
"""

import argparse
import hashlib
import os

import cv2
import numpy as np

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--samples", type=int, default=1024)
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()

SAMPLES = range(args.samples)


def discs(shard):
    """Images of discs of random size, place and blur, with the radius as the label."""
    for _ in shard.of(SAMPLES):
        image = np.zeros((96, 96, 3), np.uint8)
        radius = int(shard.rng.integers(5, 30))
        x, y = (int(v) for v in shard.rng.integers(30, 66, size=2))
        colour = [int(v) for v in shard.rng.integers(64, 256, size=3)]
        cv2.circle(image, (x, y), radius, colour, thickness=-1, lineType=cv2.LINE_AA)
        image = cv2.GaussianBlur(image, (0, 0), shard.rng.uniform(0.5, 3.0))
        yield {"image": image, "radius": radius, "pid": os.getpid()}


def read(backend):
    """Read one epoch on that backend; the checksum of its images and radii."""
    digest, samples, pids = hashlib.sha256(), 0, set()
    # shards= is fixed so that the stream does not depend on the number of workers either.
    with mpfeed.from_generator(discs, backend=backend, shards=4, workers=args.workers, batch_size=64, seed=7) as feed:
        for batch in feed:
            digest.update(batch["image"].tobytes() + batch["radius"].tobytes())
            samples += len(batch["radius"])
            pids.update(batch["pid"].tolist())
    print(f"{backend}: {samples} samples from {len(pids)} processes, sha256 {digest.hexdigest()[:16]}")
    return digest.hexdigest()


same = read("process") == read("ray")
print("the streams are the same, bit for bit" if same else "THE STREAMS DIFFER")
raise SystemExit(not same)
