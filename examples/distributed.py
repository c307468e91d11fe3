"""Data-parallel training: each replica reads its own part of one feed (``tf.distribute``).

``feed.split(n)`` gives n feeds that are disjoint, complete and equal in number, and never wait for one another.
``distribute_datasets_from_function`` asks for one dataset per input pipeline; here one pipeline serves two logical
CPU devices, so that the example runs on any machine, and each pipeline of a cluster would take its own part.
Two parts read by hand show what is promised: together they are the whole feed, batch for batch.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import mpfeed

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--samples", type=int, default=512)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16, help="of a replica")
args = parser.parse_args()


def sample(number, rng):
    x = rng.normal(size=8).astype(np.float32)
    return x, np.float32(x.sum() + number % 2)


def new_feed():
    return mpfeed.from_map(
        sample, range(args.samples), shuffle=True, seed=3, batch_size=args.batch_size, drop_remainder=True, workers=2
    )


cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

with new_feed() as feed:
    parts = feed.split(strategy.num_replicas_in_sync)
    batches = [[numbers.tobytes() for numbers, _ in part] for part in parts]
    whole = [numbers.tobytes() for numbers, _ in feed]
    in_turn = [batch for pair in zip(*batches, strict=True) for batch in pair]
    assert in_turn == whole[: len(in_turn)]
    print(f"{len(parts)} parts of {len(batches[0])} batches each are the {len(whole)} of the feed, in turn")

with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))
    bias = tf.Variable(0.0)


def step(x, y):
    """One replica's gradients; the strategy sums them over the replicas."""
    with tf.GradientTape() as tape:
        error = tf.squeeze(x @ weights, 1) + bias - y
        loss = tf.reduce_mean(tf.square(error)) / strategy.num_replicas_in_sync
    gradients = tape.gradient(loss, [weights, bias])
    gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    for variable, gradient in zip((weights, bias), gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


@tf.function
def distributed(x, y):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(x, y)), axis=None)


with new_feed() as feed:

    def dataset_of(context):
        return feed.split(context.num_input_pipelines)[context.input_pipeline_id].dataset()

    dataset = strategy.distribute_datasets_from_function(dataset_of)
    for epoch in range(args.epochs):
        losses = [float(distributed(x, y)) for x, y in dataset]
        print(f"epoch {epoch}: {len(losses)} steps of 2 replicas, loss {losses[0]:.3f} to {losses[-1]:.3f}", flush=True)
