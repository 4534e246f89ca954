"""Worker processes that run a program under a flag set, and the classification of their
failures.
"""
