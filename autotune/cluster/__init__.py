"""Handing a study to SLURM or Kubernetes."""

from autotune.cluster.kubernetes import PodRequest, manifests, to_yaml
from autotune.cluster.submit import (
    STORAGE_VARIABLE, JobRequest, Program, check_cluster, parse_time, render_script, submit_job, worker_step,
)  # fmt: skip
