"""Samples of an HDF5 file: each worker opens it once, and it is closed when the worker ends.

An open h5py file cannot travel to a worker, and one that was inherited by a fork reads garbage. ``worker_init``
returns the file, which is a context manager: a worker enters it at its start and leaves it at its end.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--file", type=Path, default=Path("samples.h5"), help="made if it is not there")
parser.add_argument("--samples", type=int, default=512)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--backend", default="process", help="inprocess, process or ray")
args = parser.parse_args()

FILE = str(args.file.resolve())


def make(path):
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (args.samples, 64, 64), "uint8", chunks=(1, 64, 64), compression="gzip")
        for number in range(args.samples):
            images[number] = number % 251
        file["labels"] = np.arange(args.samples) % 10


def opened():
    return h5py.File(FILE, "r")


def sample(number, rng):
    file = mpfeed.worker().state
    image = file["images"][number]  # only this chunk is read and decompressed
    return {"image": np.roll(image, rng.integers(64), axis=1), "label": file["labels"][number], "number": number}


if not args.file.exists():
    make(FILE)
with mpfeed.from_map(
    sample, range(args.samples), shuffle=True, worker_init=opened, workers=args.workers, backend=args.backend,
    batch_size=32,
) as feed:  # fmt: skip
    seen = 0
    for batch in feed:
        assert (batch["image"] == (batch["number"] % 251)[:, None, None]).all()
        seen += len(batch["label"])
    print(f"{seen} samples")
