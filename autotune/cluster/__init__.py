"""Handing a study to SLURM or Kubernetes."""

from autotune.cluster.kubernetes import PodRequest, manifests, to_yaml
from autotune.cluster.submit import (
    JobRequest, Program, become_workers, parse_time, render_script, shared_options, submit_script,
)  # fmt: skip
