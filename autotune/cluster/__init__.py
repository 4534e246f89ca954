"""Engines that run lanes here, in a SLURM job or on a Dask cluster; submission of SLURM jobs."""
