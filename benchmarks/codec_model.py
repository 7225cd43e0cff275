"""What codecs do to a model's own next-token distributions.

    python -m benchmarks.codec_model PATH_OR_ID --prompt-file FILE

The prompt is computed, stored and restored under each codec; then the model predicts each of its
last 64 tokens. Printed is the mean KL divergence from what it predicts on KV that was not encoded,
in nats, and the bytes of a token.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.arguments import at_least
from omlx_cache.codecs.identity import CODEC_NAMES
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore

CONTINUED = 64
STEP = 512


def main(arguments: Sequence[str] | None = None) -> int:
    """Load a model and print a line for each codec."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a path or an id that mlx-lm loads")
    parser.add_argument("--prompt-file", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--tokens", type=at_least(2 * CONTINUED), default=1024, metavar="N", help="of the prompt"
    )
    args = parser.parse_args(arguments)
    model, tokenizer = load(args.model)[:2]
    tokens = tokenizer.encode(args.prompt_file.read_text(encoding="utf-8"))[: args.tokens]
    if len(tokens) < 2 * CONTINUED:
        parser.error(f"the prompt has {len(tokens)} tokens: at least {2 * CONTINUED} are needed")
    for codec, nbytes, divergence in losses(model, tokens):
        sys.stdout.write(f"{codec:8} {nbytes:8.0f} bytes a token, KL {divergence:.2g}\n")
    return 0


def losses(model: Any, tokens: Sequence[int]) -> Iterator[tuple[str, float, float]]:
    """Yield each codec with the bytes of a token and the mean KL divergence."""
    prompt, rest = tokens[:-CONTINUED], mx.array([list(tokens[-CONTINUED:])])
    plain = make_prompt_cache(model)
    for start in range(0, len(prompt), STEP):
        _evaluated(model(mx.array([list(prompt[start : start + STEP])]), cache=plain))
    right = _evaluated(model(rest, cache=plain)[0])
    settings = CacheSettings(hot_bytes="4GiB", hot_cache_only=True, block_size=32, socket="off")
    for codec in CODEC_NAMES:
        policy = CodecPolicy(codec, min_quantize_tokens=0)
        with BlockStore(settings) as store:
            cache = PrefixCache(model, store, codec_policy=policy)
            with cache.session(prompt) as session:
                for chunk in session.prefill_chunks(STEP):
                    _evaluated(model(mx.array([chunk]), cache=session.prompt_cache))
                session.commit()
            nbytes = store.hot.usage().nbytes / len(prompt)
            with cache.session(tokens) as session:
                start = session.cached_tokens
                if start > len(prompt) or start < len(prompt) - 32:
                    raise RuntimeError(f"{start} tokens restored: {session.miss_reason}")
                following = mx.array([list(tokens[start:])])
                logits = model(following, cache=session.prompt_cache)[0][-CONTINUED:]
                yield codec, nbytes, _divergence(right, _evaluated(logits))


def _divergence(right: mx.array, logits: mx.array) -> float:
    log_p, log_q = (
        x.astype(mx.float32) - mx.logsumexp(x.astype(mx.float32), axis=-1, keepdims=True)
        for x in (right, logits)
    )
    mean: Any = mx.mean(mx.sum(mx.exp(log_p) * (log_p - log_q), axis=-1)).item()
    return max(0.0, float(mean))


def _evaluated(array: mx.array) -> mx.array:
    mx.eval(array)
    return array


if __name__ == "__main__":
    raise SystemExit(main())
