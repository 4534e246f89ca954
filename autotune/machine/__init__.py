"""What this machine is: its environment, devices, versions, energy, and SLURM."""
