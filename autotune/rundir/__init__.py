"""Run directory: append-only records, raw samples, lock, checks, and the Optuna storage."""
