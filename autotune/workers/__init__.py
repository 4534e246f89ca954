"""Processes that run a program under a flag set, and keep them in hand."""
