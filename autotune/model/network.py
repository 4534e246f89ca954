"""The section `[network]` of a study: what its machines are connected by."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autotune.model.sections import Section


class NetworkSpec(Section):
    """The network between machines, where it is not what the GPU's own makers sell it with.

    Attributes:
        nic_bytes_per_s: Bytes/s that each GPU can send over it, one way; predictions count on it. Default: what
            `autotune targets list` knows of the GPU. Google's A3 has 12.5e9, A3 Mega 25e9, NVIDIA's DGX H100 50e9.
    """

    nic_bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
