"""The names that mlx-lm's server must have: replaced, overridden or read. Without them, it runs as
it is."""

from omlx_cache.integrations.host_server import HostName, HostServer, names_of
from omlx_cache.mlx_lm_versions import TESTED

SERVER, _BATCHES = "mlx_lm.server", "mlx_lm.generate"
_TOKENIZERS = "mlx_lm.tokenizer_utils"

HOST = HostServer(
    SERVER,
    "mlx-lm",
    TESTED,
    (
        HostName(SERVER, "main", "parses its flags"),
        HostName(SERVER, "run", "replaced: answers requests"),
        HostName(SERVER, "BatchGenerator", "replaced: stores rows while they are computed"),
        *names_of(
            SERVER,
            "ResponseGenerator",
            "generate requests _next_request _time_budget",
            "a request is known from its arrival, and waits for shared blocks",
        ),
        *names_of(
            SERVER,
            "ResponseGenerator",
            "_tokenize _make_state_machine _generate _generation_thread _stop",
            "a request that is too long, or fails, ends alone",
        ),
        *names_of(
            SERVER,
            "ResponseGenerator",
            "_serve_single _is_batchable _log_cache_stats",
            "what is computed alone is stored, and no padding with it",
        ),
        *names_of(
            SERVER,
            "APIHandler",
            "do_GET do_POST handle_completion _set_completion_headers",
            "requests are limited and counted, and clients told of errors",
        ),
        HostName(SERVER, "APIHandler.generate_response", "knows what a client was answered"),
        HostName(SERVER, "ModelProvider.load_default", "loads before anybody is let in"),
        HostName(SERVER, "GenerationContext.stop", "a client that waits may leave"),
        HostName(SERVER, "LRUPromptCache", "its own cache, where ours restores something else"),
        HostName(SERVER, "Response", "knows the end of an answer"),
        HostName(SERVER, "TimeBudget", "looks for requests after each step"),
        HostName(SERVER, "CompletionRequest", "looks prompts up"),
        HostName(SERVER, "get_system_fingerprint", "is said to clients"),
        HostName(SERVER, "_make_logits_processors", "refuses options that fail"),
        HostName(SERVER, "_make_sampler", "refuses options that fail"),
        HostName(SERVER, "_image_parts", "computes images alone", ">=0.32.1"),
        *names_of(
            _BATCHES,
            "BatchGenerator",
            "_find_uids _unprocessed_sequences _currently_processing _prompt_batch "
            "_generation_batch",
            "a row is stored, stopped for others, and computed again",
        ),
        *names_of(
            _TOKENIZERS,
            "TokenizerWrapper",
            "apply_chat_template rfind_think_start rfind_think_end "
            "think_start_tokens think_end_tokens",
            "only new text of a prompt is tokenised",
        ),
        *names_of(_BATCHES, "PromptProcessingBatch", "empty Response", "rows are computed again"),
        *names_of(_BATCHES, "GenerationBatch", "empty extend", "rows are computed again"),
    ),
)
