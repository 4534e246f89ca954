"""What this machine is: its environment, devices, versions, energy, and SLURM."""

from autotune.machine.devices import held_devices, parse_devices, worker_name
from autotune.machine.energy import NO_METER, EnergyMeter, open_meter, why_not
from autotune.machine.environment import (
    caller_environment, child_environment, data_dir, default_cache_dir, driver_python, make_provenance,
    merge_for_exec, refuse_forbidden, reproduction_environment, restrict_devices, steering_settings, utc_now,
    variables_of, visible_gpus, without_passwords,
)  # fmt: skip
from autotune.machine.slurm import (
    ask_slurm, end_slurm_step, inside_slurm_job, lost_slurm_nodes, slurm_address, slurm_client_environment,
    slurm_hosts, slurm_partitions, slurm_step_command,
)  # fmt: skip
from autotune.machine.telemetry import GpuWatch, open_watch
