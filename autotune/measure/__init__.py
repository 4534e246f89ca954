"""Measuring: comparisons of two sets, loss check, long run, memory, and how long they take."""
