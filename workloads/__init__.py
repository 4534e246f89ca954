"""Training steps worth tuning; useful alone: ``python -m workloads llama --size small``."""
