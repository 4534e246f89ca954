"""penzai's own trainer on its Llama-like transformer, tiny; random tokens; a plain print every tenth step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from penzai import pz
from penzai.models.transformer.variants import llamalike_common
from penzai.toolshed import basic_training

ROWS, LENGTH, VOCABULARY, STEPS = 8, 64, 512, 3000

config = llamalike_common.LlamalikeTransformerConfig(
    num_kv_heads=2, query_head_multiplier=2, embedding_dim=64, projection_dim=16, mlp_hidden_dim=128,
    num_decoder_blocks=2, vocab_size=VOCABULARY, mlp_variant="swiglu", tie_embedder_and_logits=False,
    parameter_dtype=jnp.float32, activation_dtype=jnp.float32,
)  # fmt: skip


def loss_fn(model, state, rng, tokens):
    """The mean loss of the next token."""
    named = pz.nx.wrap(tokens).tag("batch", "seq")
    logits = model(named[{"seq": pz.slice[:-1]}], token_positions=pz.nx.arange("seq", LENGTH))
    logits = logits.unwrap("batch", "seq", "vocabulary")
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
    return loss, None, {"loss": loss}


trainer = basic_training.StatefulTrainer.build(
    root_rng=jax.random.key(0),
    model=llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(1)),
    optimizer_def=optax.adamw(1e-3),
    loss_fn=loss_fn,
)
generator = np.random.default_rng(0)
for step in range(1, STEPS + 1):
    out = trainer.step(tokens=generator.integers(0, VOCABULARY, (ROWS, LENGTH + 1)))
    if step % 10 == 0:
        print(f"step {step} loss {float(out['loss']):.4f}", flush=True)
