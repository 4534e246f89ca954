"""Engines that run lanes on this machine, in a SLURM job or on a Dask cluster; and submission of
SLURM jobs.
"""
