"""Other consumers than TensorFlow take a batch where it lies, and keep it for as long as they hold it.

PyTorch and JAX are not among the packages of development: ``make consumers`` runs this in an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mpfeed


def batches() -> mpfeed.Feed:
    def sample(number: int) -> Any:
        return {"x": np.full(1 << 16, number, np.float32), "n": number}

    return mpfeed.from_map(sample, range(24), batch_size=2, workers=1, epochs=1)


def test_a_torch_tensor_is_the_batch_and_keeps_it() -> None:
    torch = pytest.importorskip("torch")
    with batches() as feed:
        held = []
        for batch in feed:
            tensor = torch.from_dlpack(batch["x"])
            assert tensor.data_ptr() == batch["x"].ctypes.data
            held.append(tensor)
            del batch, tensor
        firsts = [[float(row[0]) for row in tensor] for tensor in held]
        assert firsts == [[n, n + 1] for n in range(0, 24, 2)]
        assert all(bool((tensor == tensor[:, :1]).all()) for tensor in held)


def test_a_jax_array_is_the_batch_and_keeps_it() -> None:
    jax = pytest.importorskip("jax")
    with batches() as feed:
        held = []
        for batch in feed:
            array = jax.device_put(batch["x"], may_alias=True)
            if jax.default_backend() == "cpu":
                assert array.unsafe_buffer_pointer() == batch["x"].ctypes.data
            held.append(array)
            del batch, array
        firsts = [[float(row[0]) for row in array] for array in held]
        assert firsts == [[n, n + 1] for n in range(0, 24, 2)]
        assert all(bool((array == array[:, :1]).all()) for array in held)


KERAS = """
import keras, numpy as np, mpfeed

assert keras.backend.backend() == BACKEND
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(0.1), "mse")

def sample(number):
    x = np.eye(4, dtype=np.float32)[number % 4]
    return x, np.float32(number % 4)

# No epochs=: with PyTorch and JAX, Keras begins one more epoch to see what a batch looks like.
with mpfeed.from_map(sample, range(64), shuffle=True, batch_size=8, workers=2) as feed:
    history = model.fit(feed.dataset(), epochs=20, verbose=0)
losses = history.history["loss"]
assert len(losses) == 20 and losses[-1] < losses[0] / 10, losses
"""


@pytest.mark.parametrize("name", ["tensorflow", "torch", "jax"])
def test_keras_trains_on_a_feed_with_each_of_its_backends(name: str) -> None:
    pytest.importorskip("tensorflow")  # the dataset is TensorFlow's, whoever trains on it
    pytest.importorskip(name)
    environment = os.environ | {"KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
    code = f"BACKEND = {name!r}\n{KERAS}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
