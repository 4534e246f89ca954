"""What this machine is: its environment, devices, versions, energy, and SLURM."""

from autotune.child.packages import (
    CUDA_PLUGINS,
    installed_versions,
)
from autotune.machine.child_process import ChildProcess
from autotune.machine.devices import (
    parse_devices,
    reserve_devices,
    restrict_devices,
)
from autotune.machine.environment import (
    caller_environment, child_environment, default_cache_dir, driver_python, let_import_packages, merge_for_exec,
    reproduction_environment, steering_settings, variables_of,
)  # fmt: skip
from autotune.machine.files import (
    COMPILES,
    LANE,
    Scratch,
    like_folder,
    make_folder,
    replace_file,
    sync_folder,
)
from autotune.machine.gpus import (
    Gpu,
    GpuFacts,
    Runner,
    find_gpus,
    gpu_facts,
    gpu_topology,
    run_program,
    visible_gpu_ids,
    visible_gpus,
)
from autotune.machine.slurm import (
    ask_slurm, end_slurm_step, inside_slurm_job, lost_slurm_nodes, slurm_address, slurm_client_environment,
    slurm_hosts, slurm_partitions, slurm_step_command,
)  # fmt: skip
from autotune.machine.telemetry import (
    EnergyMeter,
    GpuWatch,
    NO_METER,
    NO_WATCH,
    open_meter,
    open_watch,
)
from autotune.machine.host import (
    Packages, RanOn, available_memory_bytes, cuda_plugin, describe_machine, measured_versions, packages_of,
    processor_name, spare_processors, utc_now, would_run_on,
)  # fmt: skip
