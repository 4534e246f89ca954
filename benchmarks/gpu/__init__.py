"""A short hour with a GPU: scripts that keep to their minutes and resume (research/gpu-hour.md)."""
