"""Compiles programs ahead of measuring, for attached or described GPUs, and compares them."""
