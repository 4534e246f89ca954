"""Supervised fine-tuning by tunix's own trainer: a tiny Llama 3 of its, random tokens."""

import sys

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.sft import peft_trainer, utils

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
ROWS, LENGTH, VOCABULARY = 4, 128, 1024

config = llama3.ModelConfig(
    num_layers=2, vocab_size=VOCABULARY, embed_dim=128, hidden_dim=512, num_heads=4, head_dim=32, num_kv_heads=2,
    rope_theta=500_000, norm_eps=1e-5,
)  # fmt: skip


def batches():
    """Random tokens, drawn anew for each step."""
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        tokens = generator.integers(1, VOCABULARY, (ROWS, LENGTH))
        yield peft_trainer.TrainingInput(input_tokens=tokens, input_mask=np.ones_like(tokens))


def model_input(batch: peft_trainer.TrainingInput) -> dict[str, jax.Array]:
    """What the model takes of a batch."""
    mask = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(mask),
        "attention_mask": utils.make_causal_attn_mask(mask),
    }


with jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2):
    trainer = peft_trainer.PeftTrainer(
        llama3.Llama3(config, rngs=nnx.Rngs(0)),
        optax.adamw(1e-3),
        peft_trainer.TrainingConfig(eval_every_n_steps=10**9, max_steps=STEPS),
    )
    trainer.with_gen_model_input_fn(model_input).train(batches())
