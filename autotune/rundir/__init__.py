"""The run directory: what was recorded, and who may write it."""
