"""Where a study runs: lanes of this machine, of a SLURM job or of a Dask cluster."""

from autotune.cluster.engine import ANSWERS, JOINED, LEFT, Engine, Message, Told, open_dask
from autotune.cluster.processes import Place, Processes, lane_name, lanes_here, lanes_of_groups, lanes_on_nodes
from autotune.cluster.fit import estimate, idle_gpus, refuse_longer, warnings
from autotune.cluster.job_request import JobRequest, Program, Runtime, parse_time, shared_options
from autotune.cluster.submit import render_script, submit_script
