"""What this machine is: its environment, devices, versions, energy, and SLURM."""

from autotune.child.packages import CUDA_PLUGINS, installed_versions
from autotune.machine.child_process import ChildProcess
from autotune.machine.devices import parse_devices, reserve_devices, restrict_devices
from autotune.machine.energy import NO_METER, EnergyMeter, open_meter
from autotune.machine.environment import (
    caller_environment, child_environment, default_cache_dir, driver_python, let_import_packages,
    merge_for_exec, reproduction_environment, steering_settings, variables_of,
)  # fmt: skip
from autotune.machine.files import like_folder, make_folder, replace_file, sync_folder
from autotune.machine.facts import GpuFacts, gpu_facts
from autotune.machine.processors import spare_processors
from autotune.machine.gpus import Gpu, Runner, find_gpus, gpu_topology, run_program, visible_gpu_ids, visible_gpus
from autotune.machine.host_memory import available_memory_bytes
from autotune.machine.provenance import describe_machine, foreign_owner, is_this_host, processor_name, utc_now
from autotune.machine.ran_on import RanOn, would_run_on
from autotune.machine.scratch import COMPILES, LANE, Scratch
from autotune.machine.slurm import (
    ask_slurm, end_slurm_step, inside_slurm_job, lost_slurm_nodes, slurm_address, slurm_client_environment,
    slurm_hosts, slurm_partitions, slurm_step_command,
)  # fmt: skip
from autotune.machine.telemetry import NO_WATCH, GpuWatch, open_watch
from autotune.machine.versions import Packages, cuda_plugin, measured_versions, packages_of
