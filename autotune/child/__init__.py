"""Programs of child processes, and code shared with them: standard library and jax only."""
