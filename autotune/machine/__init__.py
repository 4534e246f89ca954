"""This machine: environment, devices, versions, telemetry, files, and SLURM's commands."""
