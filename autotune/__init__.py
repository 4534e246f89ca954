"""Finds, proves and exports the fastest XLA / NCCL / JAX settings for LLM training."""
