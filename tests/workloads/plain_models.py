"""The equations of published models in plain JAX, each model written out; they share nothing with `workloads`.

Weights are nested dicts as `nnx.to_pure_dict` gives them, layers under ``layers`` by their index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = Any
EVERYTHING = 10**9  # a window that no sequence fills


def rms(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps) * scale


def frequencies(size: int, theta: float) -> np.ndarray:
    return np.array([theta ** (-2 * i / size) for i in range(size // 2)])


def llama31_frequencies(size: int, theta: float, *, factor: float, original: int) -> np.ndarray:
    """`apply_scaling` of Meta's code, frequency by frequency."""
    found = []
    for frequency in frequencies(size, theta):
        wave = 2 * math.pi / frequency
        if wave < original / 4:
            found.append(frequency)
        elif wave > original:
            found.append(frequency / factor)
        else:
            smooth = (original / wave - 1) / (4 - 1)
            found.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(found)


def yarn_frequencies(size: int, theta: float, *, factor: float, original: int, truncate: bool) -> np.ndarray:
    """`_compute_yarn_parameters` of transformers, with its limits of 32 turns and of one."""
    limits = [size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1)]
    if truncate:
        limits = [math.floor(limits[0]), math.ceil(limits[1])]
    low, high = max(limits[0], 0), min(limits[1], size - 1)
    found = []
    for i, frequency in enumerate(frequencies(size, theta)):
        ramp = min(max((i - low) / (high - low if high > low else 0.001), 0), 1)
        found.append(frequency / factor * ramp + frequency * (1 - ramp))
    return np.array(found)


def turn(x: jax.Array, frequency: np.ndarray) -> jax.Array:
    """Rotary positions as products of complex numbers; [B, T, heads, size]."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None, None] * frequency
    turned = (x[..., :half] + 1j * x[..., half:]) * jnp.asarray(np.exp(1j * angle), jnp.complex64)
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    scale: float,
    window: int = EVERYTHING,
    cap: float = 0.0,
    sinks: Any = None,
) -> jax.Array:
    """One head after the other."""
    heads, length = q.shape[2], q.shape[1]
    group = heads // k.shape[2]
    row, column = np.arange(length)[:, None], np.arange(length)[None, :]
    mask = (column <= row) & (column > row - window)
    found = []
    for head in range(heads):
        logits = jnp.einsum("bth,bsh->bts", q[:, :, head], k[:, :, head // group]) * scale
        logits = cap * jnp.tanh(logits / cap) if cap else logits
        logits = jnp.where(mask, logits, -jnp.inf)
        if sinks is not None:
            extra = jnp.full((*logits.shape[:-1], 1), sinks[head])
            logits = jnp.concatenate([logits, extra], axis=-1)
        shares = jax.nn.softmax(logits, axis=-1)[..., :length]
        found.append(jnp.einsum("bts,bsh->bth", shares, v[:, :, head // group]))
    return jnp.stack(found, axis=2)


def heads_of(x: jax.Array, w: Weights, *, has_bias: bool = False) -> list[jax.Array]:
    found = [jnp.einsum("btd,dnh->btnh", x, w[name]["kernel"]) for name in ("query", "key", "value")]
    biases = (w[name]["bias"] if has_bias else 0.0 for name in ("query", "key", "value"))
    return [y + bias for y, bias in zip(found, biases, strict=True)]


def merged(y: jax.Array, w: Weights) -> jax.Array:
    return jnp.einsum("btnh,nhd->btd", y, w["out"]["kernel"])


def silu(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.exp(-x))


def gelu(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gated(x: jax.Array, w: Weights, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    y: jax.Array = activation(x @ w["gate"]["kernel"]) * (x @ w["up"]["kernel"])
    return jnp.matmul(y, w["down"]["kernel"])


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1))


def balance(probabilities: jax.Array, is_chosen: jax.Array, top_k: int) -> jax.Array:
    """Per sequence: experts times the sum over them of load and mean probability."""
    count = probabilities.shape[-1]
    load = is_chosen.mean(1) / top_k
    return jnp.mean(jnp.sum(load * probabilities.mean(1), -1) * count)


def chosen(scores: jax.Array, top_k: int) -> jax.Array:
    """1 where a token's score is one of its largest, else 0."""
    return (scores >= jnp.sort(scores, axis=-1)[..., -top_k][..., None]).astype(jnp.float32)


def llama(w: Weights, inputs: jax.Array, targets: jax.Array, *, frequency: np.ndarray, has_bias: bool) -> jax.Array:
    """Llama 3.1 and, with biases of queries, keys and values, Qwen 2.5."""
    x = w["embedding"]["embedding"][inputs]
    for layer in w["layers"].values():
        q, k, v = heads_of(rms(x, layer["attention_norm"]["scale"], 1e-5), layer["attention"], has_bias=has_bias)
        y = attention(turn(q, frequency), turn(k, frequency), v, scale=q.shape[-1] ** -0.5)
        x = x + merged(y, layer["attention"])
        x = x + gated(rms(x, layer["ffw_norm"]["scale"], 1e-5), layer["ffw"], silu)
    return cross_entropy(rms(x, w["norm"]["scale"], 1e-5) @ w["head"]["kernel"], targets)


def qwen3(
    w: Weights, inputs: jax.Array, targets: jax.Array, *, top_k: int = 0, theta: float = 1e6, eps: float = 1e-6
) -> jax.Array:
    """Dense, or with experts whose shares of the chosen sum to 1; Mixtral, which has no norms of queries and keys."""
    x, balances = w["embedding"]["embedding"][inputs], []
    for layer in w["layers"].values():
        own = layer["attention"]
        q, k, v = heads_of(rms(x, layer["attention_norm"]["scale"], eps), own)
        if "query_norm" in own:
            q, k = rms(q, own["query_norm"]["scale"], eps), rms(k, own["key_norm"]["scale"], eps)
        frequency = frequencies(q.shape[-1], theta)
        x = x + merged(attention(turn(q, frequency), turn(k, frequency), v, scale=q.shape[-1] ** -0.5), own)
        y = rms(x, layer["ffw_norm"]["scale"], eps)
        if not top_k:
            x = x + gated(y, layer["ffw"], silu)
            continue
        experts = layer["ffw"]
        probabilities = jax.nn.softmax(y @ experts["router"]["kernel"])
        picks = chosen(probabilities, top_k)
        shares = probabilities * picks / jnp.sum(probabilities * picks, -1, keepdims=True)
        for e in range(len(experts["gate"])):
            own = {name: {"kernel": experts[name][e]} for name in ("gate", "up", "down")}
            x = x + shares[..., e, None] * gated(y, own, silu)
        balances.append(balance(probabilities, picks, top_k))
    loss = cross_entropy(rms(x, w["norm"]["scale"], eps) @ w["head"]["kernel"], targets)
    return loss + 0.01 * jnp.mean(jnp.array(balances)) if balances else loss


def gemma(w: Weights, inputs: jax.Array, targets: jax.Array, *, is_third: bool) -> jax.Array:
    """Local and global layers by turns; Gemma 2: with soft caps, without qk-norm and a second kind of positions."""
    embedding = w["embedding"]["embedding"]
    x = embedding[inputs] * math.sqrt(embedding.shape[1])
    for at, layer in w["layers"].items():
        own, is_local = layer["attention"], at % 2 == 0
        q, k, v = heads_of(rms(x, layer["attention_norm"]["scale"], 1e-6), own)
        local, far = frequencies(q.shape[-1], 1e4), frequencies(q.shape[-1], 1e6) / 8
        if is_third:
            q, k = rms(q, own["query_norm"]["scale"], 1e-6), rms(k, own["key_norm"]["scale"], 1e-6)
        frequency = far if is_third and not is_local else local
        window, cap = 5 if is_local else EVERYTHING, 0.0 if is_third else 0.7
        y = attention(turn(q, frequency), turn(k, frequency), v, scale=8**-0.5, window=window, cap=cap)
        x = x + rms(merged(y, own), layer["attention_post_norm"]["scale"], 1e-6)
        y = gated(rms(x, layer["ffw_norm"]["scale"], 1e-6), layer["ffw"], gelu)
        x = x + rms(y, layer["ffw_post_norm"]["scale"], 1e-6)
    logits = rms(x, w["norm"]["scale"], 1e-6) @ embedding.T
    return cross_entropy(logits if is_third else 2.0 * jnp.tanh(logits / 2.0), targets)


def olmo3(w: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Norms after attention and feed-forward, of all queries and keys at once; layers by turns local, and with YaRN."""
    x = w["embedding"]["embedding"][inputs]
    for at, layer in w["layers"].items():
        own = layer["attention"]
        q, k, v = heads_of(x, own)
        rows = q.shape[:2]
        q, k = (
            rms(y.reshape(*rows, -1), own[name]["scale"], 1e-6).reshape(y.shape)
            for y, name in ((q, "query_norm"), (k, "key_norm"))
        )
        frequency, factor, window = frequencies(q.shape[-1], 5e5), 1.0, 5
        if at % 2 == 1:
            frequency = yarn_frequencies(q.shape[-1], 5e5, factor=8, original=8, truncate=True)
            factor, window = 0.1 * math.log(8) + 1, EVERYTHING
        q, k = turn(q, frequency) * factor, turn(k, frequency) * factor
        y = attention(q, k, v, scale=q.shape[-1] ** -0.5, window=window)
        x = x + rms(merged(y, own), layer["attention_post_norm"]["scale"], 1e-6)
        x = x + rms(gated(x, layer["ffw"], silu), layer["ffw_post_norm"]["scale"], 1e-6)
    return cross_entropy(rms(x, w["norm"]["scale"], 1e-6) @ w["head"]["kernel"], targets)


def gpt_oss(w: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Sinks, biases everywhere, a clamped gate; the first of two layers is local."""
    x, balances = w["embedding"]["embedding"][inputs], []
    for at, layer in w["layers"].items():
        own, experts = layer["attention"], layer["ffw"]
        q, k, v = heads_of(rms(x, layer["attention_norm"]["scale"], 1e-5), own, has_bias=True)
        frequency = yarn_frequencies(q.shape[-1], 1.5e5, factor=32, original=8, truncate=False)
        factor = 0.1 * math.log(32) + 1
        q, k, window = turn(q, frequency) * factor, turn(k, frequency) * factor, 5 if at == 0 else EVERYTHING
        y = attention(q, k, v, scale=q.shape[-1] ** -0.5, window=window, sinks=own["sinks"])
        x = x + merged(y, own) + own["out"]["bias"]
        y = rms(x, layer["ffw_norm"]["scale"], 1e-5)
        scores = y @ experts["router"]["kernel"] + experts["router"]["bias"]
        picks = chosen(scores, 3)
        shares = jax.nn.softmax(jnp.where(picks > 0, scores, -jnp.inf))
        for e in range(len(experts["gate"])):
            gate = jnp.minimum(y @ experts["gate"][e] + experts["gate_bias"][e], 7)
            up = jnp.clip(y @ experts["up"][e] + experts["up_bias"][e], -7, 7)
            out = ((up + 1) * gate / (1 + jnp.exp(-1.702 * gate))) @ experts["down"][e] + experts["down_bias"][e]
            x = x + shares[..., e, None] * out
        balances.append(balance(jax.nn.softmax(scores), picks, 3))
    loss = cross_entropy(rms(x, w["norm"]["scale"], 1e-5) @ w["head"]["kernel"], targets)
    return loss + 0.01 * jnp.mean(jnp.array(balances))


def deepseek(w: Weights, inputs: jax.Array, targets: jax.Array, *, is_third: bool) -> jax.Array:
    """V3: a latent of queries, sigmoids, four groups of two experts of which two count; V2-Lite: none of that.

    Both: heads of 8 and 4 turned, values of 8; a first dense layer, two shared experts, three of eight chosen. Layers
    under ``mtp`` predict further tokens, where there are such.
    """
    embedding, head, length = w["embedding"]["embedding"], w["head"]["kernel"], inputs.shape[1]
    x, balances, further = embedding[inputs], [], []
    for layer in w["layers"].values():
        x, own = deepseek_layer(x, layer, is_third=is_third)
        balances.append(own)
    loss = cross_entropy(rms(x, w["norm"]["scale"], 1e-6) @ head, targets) + 1e-4 * jnp.mean(jnp.array(balances))
    for depth, layer in enumerate(w.get("mtp", {}).values(), start=1):
        known = rms(embedding[jnp.roll(targets, 1 - depth, axis=1)], layer["token_norm"]["scale"], 1e-6)
        both = jnp.concatenate([rms(x, layer["found_norm"]["scale"], 1e-6), known], axis=-1)
        x, own = deepseek_layer(both @ layer["projection"]["kernel"], layer["block"], is_third=is_third)
        logits = rms(x[:, :-depth], layer["norm"]["scale"], 1e-6) @ head
        further.append(cross_entropy(logits, targets[:, depth:]) * (length - depth) / length + 1e-4 * own)
    return loss + 0.3 * jnp.mean(jnp.array(further)) if further else loss


def deepseek_layer(x: jax.Array, w: Weights, *, is_third: bool) -> tuple[jax.Array, jax.Array]:
    longer = (0.1 * (1.0 if is_third else 0.707) * math.log(40) + 1) ** 2
    frequency = yarn_frequencies(4, 1e4, factor=40, original=8, truncate=True)
    own = w["attention"]
    y = rms(x, w["attention_norm"]["scale"], 1e-6)
    down = rms(y @ own["query_down"]["kernel"], own["query_norm"]["scale"], 1e-6) if is_third else y
    q = jnp.einsum("btr,rnh->btnh", down, own["query"]["kernel"])
    latent, shared = jnp.split(y @ own["latent"]["kernel"], [16], axis=-1)
    both = jnp.einsum("btr,rnh->btnh", rms(latent, own["latent_norm"]["scale"], 1e-6), own["key_value"]["kernel"])
    q = jnp.concatenate([q[..., :8], turn(q[..., 8:], frequency)], axis=-1)
    turned = jnp.repeat(turn(shared[:, :, None], frequency), q.shape[2], axis=2)
    k = jnp.concatenate([both[..., :8], turned], axis=-1)
    x = x + merged(attention(q, k, both[..., 8:], scale=12**-0.5 * longer), own)
    y = rms(x, w["ffw_norm"]["scale"], 1e-6)
    if "router" not in w["ffw"]:
        return x + gated(y, w["ffw"], silu), jnp.float32(0)
    out, probabilities, picks = deepseek_experts(y, w["ffw"], is_third=is_third)
    return x + out, balance(probabilities, picks, 3)


def deepseek_experts(y: jax.Array, w: Weights, *, is_third: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    scores = y @ w["router"]["kernel"]
    if is_third:
        worth = 1 / (1 + jnp.exp(-scores))
        biased = worth + w["choice_bias"]
        groups = biased.reshape(*biased.shape[:-1], 4, 2)
        is_open = jnp.repeat(chosen(groups.sum(-1), 2), 2, axis=-1)
        picks = chosen(jnp.where(is_open > 0, biased, 0.0), 3)
        shares = 2.5 * worth * picks / jnp.sum(worth * picks, -1, keepdims=True)
        probabilities = worth / worth.sum(-1, keepdims=True)
    else:
        probabilities = jax.nn.softmax(scores)
        picks = chosen(probabilities, 3)
        shares = probabilities * picks
    out = gated(y, w["shared"], silu)
    for e in range(len(w["gate"])):
        own = {name: {"kernel": w[name][e]} for name in ("gate", "up", "down")}
        out = out + shares[..., e, None] * gated(y, own, silu)
    return jnp.asarray(out), probabilities, picks
