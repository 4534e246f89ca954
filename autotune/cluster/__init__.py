"""Handing a study to SLURM or Kubernetes."""

from autotune.cluster.kubernetes import PodRequest, manifests, to_yaml
from autotune.cluster.submit import (
    STORAGE_VARIABLE, JobRequest, Program, become_workers, check_cluster, parse_time, render_script, shared_options,
    submit_job,
)  # fmt: skip
