"""A small causal transformer of Keras 3 on JAX, by `fit`; random tokens."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

ROWS, LENGTH, VOCABULARY, WIDTH, HEADS = 8, 64, 512, 64, 4


def block(x):
    """Attention, then a dense part, both beside a residual."""
    y = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(4 * WIDTH, activation="gelu")(y)
    return x + keras.layers.Dense(WIDTH)(y)


keras.utils.set_random_seed(0)
tokens = keras.Input((LENGTH,), dtype="int32")
x = keras.layers.Embedding(VOCABULARY, WIDTH)(tokens)
for _ in range(2):
    x = block(x)
model = keras.Model(tokens, keras.layers.Dense(VOCABULARY)(x))
model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
text = np.random.default_rng(0).integers(0, VOCABULARY, (4096, LENGTH + 1))
model.fit(text[:, :-1], text[:, 1:], batch_size=ROWS, epochs=8)
