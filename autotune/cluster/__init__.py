"""Handing a study to SLURM, Kubernetes or a pool of workers."""

from autotune.cluster.certificates import make_certificates, tls_folder
from autotune.cluster.kubernetes import PodRequest, manifests, secret_command, to_yaml
from autotune.cluster.pools import join_pool, open_pool
from autotune.cluster.submit import (
    JobRequest, Program, become_workers, parse_time, render_script, shared_options, submit_script,
)  # fmt: skip
