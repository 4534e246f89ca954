"""This machine: environment variables, devices, versions, telemetry, files, and SLURM's
commands.
"""
