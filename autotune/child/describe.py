"""What a workload tells of itself when it is built, on devices of the CPU: no step is compiled, and none runs.

Speaks over the channel like the measuring worker (see `autotune.child.channel`): ``job`` in, ``figures`` out.
"""

from __future__ import annotations

import sys
from typing import Any

from autotune.child.channel import Channel, serve


def work(channel: Channel, job: dict[str, Any]) -> None:
    """Builds the job's workload; `figures` are those that a worker reports, see `workloads.base.Workload.figures`."""
    import jax

    from workloads.loading import load

    workload = load(job["entry"], job["options"], jax.devices()[: job["device_count"]])
    channel.send("figures", **workload.figures)


if __name__ == "__main__":
    sys.exit(serve(work))
