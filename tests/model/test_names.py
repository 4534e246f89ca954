"""What may ever be a setting: the list holds against names that nobody thought of, and for all that is published."""

from __future__ import annotations

import pytest

from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet, kind_of, refuse_reaching_out
from autotune.model.spec import parse_study
from autotune.settings.catalog import load_catalog
from autotune.settings.recipes import load_recipes

NEVER = [
    "PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL", "PS4", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT",
    "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONWARNINGS", "XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS",
    "AUTOTUNE_CHANNEL", "GCONV_PATH", "HTTPS_PROXY", "GIT_SSH_COMMAND", "PERL5OPT", "NODE_OPTIONS",
    "CUDA_INJECTION64_PATH", "CUDA_CACHE_PATH", "OMP_TOOL_LIBRARIES", "MALLOC_CONF", "MALLOC_TRACE",
    "UCX_GDB_COMMAND", "TPU_LIBRARY_PATH", "FI_PROVIDER_PATH", "PJRT_NAMES_AND_LIBRARY_PATHS", "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_CONF_FILE",
    "NCCL_COMM_ID", "NCCL_RAS_ADDR", "JAX_COMPILATION_CACHE_DIR", "JAX_DUMP_IR_TO", "JAX_COORDINATOR_ADDRESS",
]  # fmt: skip

HARMLESS_TEXT = {
    "xla_cpu_max_isa", "xla_disable_hlo_passes", "xla_enable_nccl_symmetric_buffers_for_collectives",
    "xla_gpu_analytical_latency_estimator_options", "xla_gpu_collective_domain_assignment",
    "xla_gpu_collectives_implementation", "xla_gpu_device_execution_terminate_timeout",
    "xla_gpu_execution_terminate_timeout", "xla_gpu_experimental_cost_model_gemm_tiling_options",
    "xla_gpu_experimental_thunk_buffer_debug_filter",
    "xla_gpu_experimental_thunk_buffer_debug_filter_by_profile_annotation_re",
    "xla_gpu_experimental_thunk_buffer_debug_filter_by_thunk_id_ranges", "jax_persistent_cache_enable_xla_caches",
}  # fmt: skip
"""Flags with a free text that is no file's name and no option of another program: read one by one in the sources."""


def test_what_changes_the_program_or_reaches_out_is_never_a_setting() -> None:
    for name in NEVER:
        with pytest.raises(SettingError, match=f"{name} changes which program runs, or is not known"):
            FlagSet({name: "x"})
    for more in ({"baseline": {"LD_PRELOAD": "x"}}, {"search": {"settings": {"NCCL_NET_PLUGIN": ["x"]}}}):
        with pytest.raises(ValueError, match="take it out of the settings"):
            parse_study({"name": "s", "workload": {"entry": "llama"}, **more})


@pytest.mark.parametrize("name", ["NCCL_A\n", "NCCL A", "xla_a\n", "jax_a;b", "NCCL_É", "$(x)", "x" * 9999])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        FlagSet({name: "1"})
    assert len(str(caught.value)) < 500


def test_all_that_is_published_may_be_set() -> None:
    # What libtpu reads is catalogued, so that it can be told of; no study here runs on a TPU.
    names = {n for n in load_catalog() if n not in ("process_layout", "XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    names |= {n for r in load_recipes().values() for n in r.settings}
    assert {kind_of(n) for n in names} == {"xla", "jax", "env"}


def test_every_published_flag_with_a_free_text_is_known_as_harmless_or_reaches_out() -> None:
    texts = [s for s in load_catalog().values() if s.kind in ("xla", "jax") and s.type in ("string", "message")]
    left = {s.name for s in texts if not reaches_out(s.name)}
    # What the catalogue calls dangerous is never handed on anyway.
    assert left - {s.name for s in texts if s.danger} <= HARMLESS_TEXT


def reaches_out(name: str) -> bool:
    try:
        refuse_reaching_out([name])
    except SettingError as error:
        return name in str(error)
    return False


@pytest.mark.parametrize(
    "name",
    [
        "xla_dump_to", "xla_gpu_cuda_data_dir", "xla_gpu_ptx_file", "xla_gpu_llvm_ir_file", "xla_backend_extra_options",
        "xla_gpu_asm_extra_flags", "xla_gpu_dump_autotune_results_to", "xla_gpu_load_autotune_results_from",
        "jax_compilation_cache_dir", "jax_dump_ir_to", "jax_coordinator_address", "xla_gpu_of_tomorrow_cache_dir",
    ],
)  # fmt: skip
def test_flags_that_reach_files_are_found_also_those_of_tomorrow(name: str) -> None:
    assert reaches_out(name)


@pytest.mark.parametrize("name", ["xla_hlo_evaluator_use_fast_path", "xla_gpu_autotune_level", "NCCL_PROTO"])
def test_others_are_not(name: str) -> None:
    assert not reaches_out(name)
