"""A short hour with a GPU, as scripts that keep to their minutes and go on after a kill; see
research/gpu-hour.md.
"""
