"""Programs that run in child processes, and code shared with the driver: standard library and jax
only.
"""
