"""Clips of consecutive frames from video files, each file read by one worker from its beginning to its end.

A ``cv2.VideoCapture`` is opened in the generator and released when it ends, also when the consumer stops early.
Seeking in a video is slow and, with many codecs, inexact: that is why the files are what is sharded, and not frames.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--folder", type=Path, default=Path("videos"), help="filled with videos if it is not there")
parser.add_argument("--videos", type=int, default=4)
parser.add_argument("--frames", type=int, default=48, help="of a video")
parser.add_argument("--length", type=int, default=8, help="frames of a clip")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--backend", default="process", help="inprocess, process or ray")
args = parser.parse_args()


def make(folder):
    """Videos whose frames are grey, a little brighter from frame to frame."""
    folder.mkdir()
    for video in range(args.videos):
        writer = cv2.VideoWriter(str(folder / f"{video:03d}.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 25.0, (96, 64))
        for frame in range(args.frames):
            writer.write(np.full((64, 96, 3), 16 + 4 * frame, np.uint8))
        writer.release()


def clips(shard):
    for video in shard.of(VIDEOS):
        capture = cv2.VideoCapture(video)
        try:
            frames = []
            while True:
                more, frame = capture.read()
                if not more:
                    break
                frames.append(cv2.resize(frame, (48, 32), interpolation=cv2.INTER_AREA))
                if len(frames) == args.length:
                    yield {"frames": np.stack(frames), "video": Path(video).name}
                    frames = []
        finally:
            capture.release()


if not args.folder.exists():
    make(args.folder)
VIDEOS = [str(path.resolve()) for path in sorted(args.folder.glob("*.avi"))]

# One shard a video: the stream does not depend on the number of workers.
with mpfeed.from_generator(clips, shards=len(VIDEOS), workers=args.workers, backend=args.backend, batch_size=2) as feed:
    shown = {}
    for batch in feed:
        for video, frames in zip(batch["video"], batch["frames"], strict=True):
            shown.setdefault(video, []).append(frames.mean(axis=(1, 2, 3)))
    for video, clips_of in sorted(shown.items()):
        brightness = np.concatenate(clips_of)
        assert (np.diff(brightness) > 0).all(), "frames are out of order"
        print(f"{video}: {len(clips_of)} clips of {args.length} frames, in order")
