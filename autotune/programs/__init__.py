"""Probes a user's program: runs it once, finds how its steps are read, and drafts its study."""
