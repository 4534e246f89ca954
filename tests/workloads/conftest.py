"""Eight virtual CPU devices for every test here; set before anything asks for a device."""

from __future__ import annotations

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
