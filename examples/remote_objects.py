"""Images in object storage, read by the workers through fsspec: several reads in flight in each, cached on disk.

Without ``--endpoint`` a server that speaks S3 is started here (moto's), with images in it. Each worker opens its
connections once, in ``worker_init``. Reading dominates, so a worker has several reads in flight while it decodes:
a window of futures, taken in order, so that the stream is the same every time. A file is fetched once and kept below
``--cache``; the next epoch reads it there.
"""

import argparse
import logging
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import cv2
import fsspec
import numpy as np

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--endpoint", help="URL of a server that speaks S3; default: one is started here")
parser.add_argument("--bucket", default="images")
parser.add_argument("--images", type=int, default=64, help="to put there, where the server is started here")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--in-flight", type=int, default=4, help="reads of a worker at a time")
parser.add_argument("--cache", help="folder for what was read; default: no cache")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()


def opened():
    """What each worker has of its own: a file system with its connections, and threads that read."""
    retries = {"max_attempts": 5, "mode": "standard"}
    # With one part at a time, s3fs need not ask for an object's size before it reads it: one request instead of two.
    remote = {"endpoint_url": ENDPOINT, "config_kwargs": {"retries": retries}, "max_concurrency": 1}
    if args.cache:
        files = fsspec.filesystem("simplecache", target_protocol="s3", target_options=remote, cache_storage=args.cache)
    else:
        files = fsspec.filesystem("s3", **remote)
    return files, ThreadPoolExecutor(args.in_flight)


def ahead(paths):
    """The bytes of each path in order, with so many reads on their way."""
    files, pool = mpfeed.worker().state
    window = deque()
    for path in paths:
        window.append((path, pool.submit(files.cat_file, path)))
        if len(window) > args.in_flight:
            first, future = window.popleft()
            yield first, future.result()
    for first, future in window:
        yield first, future.result()


def images(shard):
    for path, data in ahead(shard.of(PATHS)):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        yield {"image": cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA), "path": path}


def serve():
    """A server on this machine with images in it; (the server, its URL)."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would print every request
    os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    files = fsspec.filesystem("s3", endpoint_url=f"http://{host}:{port}")
    files.mkdir(args.bucket)
    for number in range(args.images):
        _, jpeg = cv2.imencode(".jpg", np.full((96, 96, 3), 2 * number % 256, np.uint8))
        files.pipe_file(f"{args.bucket}/{number:05d}.jpg", jpeg.tobytes())
    return server, f"http://{host}:{port}"


server, ENDPOINT = (None, args.endpoint) if args.endpoint else serve()
PATHS = sorted(fsspec.filesystem("s3", endpoint_url=ENDPOINT).ls(args.bucket, detail=False))
with mpfeed.from_generator(
    images, shards=4, workers=args.workers, batch_size=8, worker_init=opened, epochs=args.epochs
) as feed:
    for epoch in range(args.epochs):
        seen = [path for batch in feed for path in batch["path"]]
        assert sorted(seen) == PATHS
        print(f"epoch {epoch}: {len(seen)} images")
if server is not None:
    server.stop()
