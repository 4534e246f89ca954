"""Where a study runs: lanes of this machine, of a SLURM job or of a Dask cluster; and jobs for SLURM."""
