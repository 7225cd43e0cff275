"""HostServer: another project's server, and the names that are needed of it, checked before
anything of it runs. Imports no MLX."""

import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from omlx_cache import mlx_lm_versions
from omlx_cache.identity.namespace import version_of
from omlx_cache_storage.errors import CacheError

_log = logging.getLogger(__name__)

RUNS_WITH_ITS_OWN = ": it runs with its own cache"
SHOWN = 3
"""Names that one line says: where a module went, all of its names did."""


@dataclass(frozen=True, slots=True)
class HostName:
    """An attribute of a module, dotted for a class's: `Scheduler._create_batch_generator`. An
    attribute of instances counts where the class's `__init__` names it. Only `versions` of the
    host, in pip's form, are asked for it."""

    module: str
    attribute: str
    versions: str = ""


def names_of(module: str, kind: str, attributes: str) -> tuple[HostName, ...]:
    """Return the names of a class's attributes, or with no class of the module's, which stand with
    spaces between them."""
    owner = f"{kind}." if kind else ""
    return tuple(HostName(module, f"{owner}{name}") for name in attributes.split())


def missing(names: Iterable[HostName], version: str) -> list[HostName]:
    """Return the names that this version of the host should have and lacks; imports its modules.

    A module that is not there, or that cannot be imported, lacks all of its names.
    """
    return [
        name
        for name in names
        if (not name.versions or _covers(name.versions, version)) and not _is_there(name)
    ]


def lacks(host: str, version: str, names: Iterable[HostName]) -> str:
    """Return the line that says which names a host lacks, and how it runs without them; "" for
    none."""
    told = [f"`{name.module}.{name.attribute}`" for name in names]
    if len(told) > SHOWN:
        told[SHOWN:] = [f"nor {len(told) - SHOWN} more"]
    return f"{host} {version} has no {', '.join(told)}{RUNS_WITH_ITS_OWN}" if told else ""


class UnusableHost(CacheError, RuntimeError):
    """A host cannot have this cache, and the setting `require` says that it must."""


@dataclass(frozen=True, slots=True)
class HostServer:
    """A server that this cache is put into: its command, its distribution, the tested versions in
    pip's form, and the names that it must have."""

    name: str
    package: str
    tested: str
    needed: tuple[HostName, ...] = ()

    @property
    def version(self) -> str:
        """The installed version, empty for a source tree and for none."""
        return version_of(self.package)

    @property
    def is_tested(self) -> bool:
        """True when the tests ran with the installed version, and with that of mlx-lm."""
        beneath = mlx_lm_versions.installed()
        return _covers(self.tested, self.version) and (
            not beneath or _covers(mlx_lm_versions.TESTED, beneath)
        )

    def lacking(self) -> str:
        """Return the line that says which names the installed version lacks, "" for none."""
        return lacks(self.package, self.version, missing(self.needed, self.version))

    def is_complete(self, *, require: bool) -> bool:
        """Return whether the installed version has every name. Logs which it lacks, or with
        `require` raises UnusableHost."""
        return _settled(self.lacking(), require)

    def takes(
        self,
        target: object,
        names: Iterable[HostName],
        model: Callable[[], Any],
        *,
        require: bool,
        make_cache: Callable[[], list[Any]] | None = None,
    ) -> bool:
        """Return whether the cache may go into an object of the host's: it has every name, and an
        untested version restores what its model computed (`probe`). `model` returns that, and is
        called where the names are there. Logs why not, or with `require` raises UnusableHost. Call
        it on the thread that runs the model."""
        gone = [name for name in names if not has(target, name.attribute)]
        line = lacks(self.package, self.version, gone)
        if not line and not self.is_tested:
            from omlx_cache.integrations.probe import is_right

            if not is_right(self.package, model(), make_cache):
                line = (
                    f"{self.package} {self.version} was not tested, and restores something else "
                    f"than it computed{RUNS_WITH_ITS_OWN}"
                )
        return _settled(line, require)


def has(target: object, attribute: str) -> bool:
    """True when an object has the last part of a dotted name."""
    return hasattr(target, attribute.rpartition(".")[2])


def _settled(line: str, require: bool) -> bool:
    if line and require:
        raise UnusableHost(line.removesuffix(RUNS_WITH_ITS_OWN))
    if line:
        _log.warning(line)
    return not line


def _covers(versions: str, version: str) -> bool:
    try:
        return SpecifierSet(versions).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _is_there(name: HostName) -> bool:
    *owners, last = name.attribute.split(".")
    try:
        owner: Any = reduce(getattr, owners, import_module(name.module))
    except (ImportError, AttributeError):
        return False
    begun = getattr(inspect.unwrap(getattr(owner, "__init__", owner)), "__code__", None)
    return hasattr(owner, last) or (begun is not None and last in begun.co_names)


# mlx-lm's server: `run` and `BatchGenerator` are replaced, ResponseGenerator and APIHandler are
# overridden. What follows a class is overridden, called or read.
_LM, _LM_ROWS = "mlx_lm.server", "mlx_lm.generate"
MLX_LM = HostServer(
    _LM,
    "mlx-lm",
    mlx_lm_versions.TESTED,
    (
        *names_of(
            _LM,
            "",
            "main run BatchGenerator LRUPromptCache Response TimeBudget CompletionRequest "
            "get_system_fingerprint _make_logits_processors _make_sampler",
        ),
        *names_of(
            _LM,
            "ResponseGenerator",
            "generate requests _next_request _time_budget _tokenize _make_state_machine _generate "
            "_generation_thread _stop _serve_single _is_batchable _log_cache_stats",
        ),
        *names_of(
            _LM,
            "APIHandler",
            "do_GET do_POST handle_completion _set_completion_headers generate_response",
        ),
        HostName(_LM, "ModelProvider.load_default"),
        HostName(_LM, "GenerationContext.stop"),
        # It computes images alone.
        HostName(_LM, "_image_parts", ">=0.32.1"),
        *names_of(
            _LM_ROWS,
            "BatchGenerator",
            "_find_uids _unprocessed_sequences _currently_processing _prompt_batch "
            "_generation_batch",
        ),
        *names_of(
            "mlx_lm.tokenizer_utils",
            "TokenizerWrapper",
            "apply_chat_template rfind_think_start rfind_think_end "
            "think_start_tokens think_end_tokens",
        ),
        *names_of(_LM_ROWS, "PromptProcessingBatch", "empty Response"),
        *names_of(_LM_ROWS, "GenerationBatch", "empty extend"),
    ),
)

_APC, _AR = "mlx_vlm.apc", "mlx_vlm.generate.ar"
MLX_VLM = HostServer(
    "mlx_vlm.server",
    "mlx-vlm",
    "==0.7.10",
    (
        HostName("mlx_vlm.server", "main"),
        HostName("mlx_vlm.server.runtime", "runtime"),
        HostName("mlx_vlm.server.generation", "BatchGenerator"),
        *names_of(
            _APC,
            "",
            "from_env media_safe_prefix_min make_warm_batch_exact_cache_multi _hash_payload "
            "_stable_int_hash APCManager",
        ),
        *names_of(
            _APC,
            "APCCoordinator",
            "lookup checkpoint_lengths merge_rows materialize_single "
            "store_checkpoint commit is_checkpoint",
        ),
        *names_of(
            _AR,
            "BatchGenerator",
            "next remove _apc_pick_for _apc_extra_hash _build_mixed_prompt_batch",
        ),
        *names_of(_AR, "GenerationBatch", "filter next"),
        *names_of(_AR, "PromptProcessingBatch", "_row_real_tokens_processed"),
        *names_of("mlx_vlm.models.cache", "", "make_prompt_cache KVCache BatchKVCache CacheList"),
    ),
)
MLX_VLM_GENERATOR = names_of(
    _AR,
    "BatchGenerator",
    "model apc apc_manager apc_mode draft_model prefill_batch_size kv_bits kv_quant_scheme "
    "kv_group_size quantized_kv_start _stream _prompt_batch _generation_batch",
)

OPENAI_SERVER = HostServer(
    "mlx-openai-server",
    "mlx-openai-server",
    ">=1.8.1,<1.9",
    (
        HostName("app.cli", "cli"),
        HostName("app.server", "create_handler_from_config"),
        HostName("app.core.handler_process", "_handler_worker"),
    ),
)
OPENAI_SCHEDULER = names_of(
    "app.core",
    "BatchScheduler",
    "_prompt_cache _model _max_kv_size _prefill_batch_size _batch_generator",
)
OPENAI_HANDLER = names_of(
    "app.handler.mlx_lm",
    "MLXLMHandler",
    "prompt_cache model model_path kv_bits kv_group_size quantized_kv_start _batch_scheduler "
    "_batch_max_kv_size _batch_prefill_size _is_request_batchable",
)

_VLLM = "vllm_mlx.scheduler"
VLLM_MLX = HostServer(
    "vllm-mlx",
    "vllm-mlx",
    ">=0.6.0,<0.7",
    (
        HostName("vllm_mlx.cli", "main"),
        HostName(_VLLM, "Scheduler"),
        *names_of(
            _VLLM,
            "SchedulerConfig",
            "enable_prefix_cache ssd_cache_dir cache_memory_mb kv_cache_quantization "
            "kv_cache_quantization_bits kv_cache_min_quantize_tokens",
        ),
    ),
)
VLLM_SCHEDULER = names_of(
    _VLLM,
    "Scheduler",
    "config model tokenizer requests prefix_cache memory_aware_cache block_aware_cache "
    "paged_cache_manager _ssd_tier close_ssd_tier SNAPSHOT_REFRESH_TOKENS _create_batch_generator "
    "_close_batch_generator _current_sampler_params _bounded_kv_size _bound_cache_layers",
)
VLLM_GENERATOR = names_of(
    "vllm_mlx.mllm_batch_generator",
    "MLLMBatchGenerator",
    "prefix_cache language_model processor max_kv_size",
)
