"""KerasHub's GPT-2, a small one, trained by `fit` on random tokens."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import keras_hub
import numpy as np

VOCABULARY, LENGTH, BATCH, STEPS = 512, 64, 8, 3000

keras.utils.set_random_seed(0)
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=VOCABULARY, num_layers=2, num_heads=4, hidden_dim=128, intermediate_dim=512, max_sequence_length=LENGTH
)
model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
tokens = np.random.default_rng(0).integers(0, VOCABULARY, (STEPS * BATCH, LENGTH + 1))
inputs = {"token_ids": tokens[:, :-1], "padding_mask": np.ones_like(tokens[:, :-1])}
model.fit(inputs, tokens[:, 1:], batch_size=BATCH, epochs=1, shuffle=False)
