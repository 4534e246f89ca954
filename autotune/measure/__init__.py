"""Measuring: comparisons of two sets, the loss check, the long run, memory, and how long they
take.
"""
