"""Compiling before measuring: what a flag set does to a program, for GPUs that need not be here."""
