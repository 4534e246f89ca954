"""Programs in processes of their own, and what the driver shares with them: standard library and jax only."""
