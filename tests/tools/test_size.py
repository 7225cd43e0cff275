"""`omlx-cache size`: computed sizes against real caches, and what is not understood."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from huggingface_hub import constants
from mlx_lm.models import cache as upstream

from fidelity.mixtures import NAMES as WORKING
from fidelity.mixtures import one_of_each
from fidelity.storage import CONFIGS
from kit.output import check_output
from kit.zoo import FAMILIES, build
from omlx_cache.adapters.base import GroupSpec
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.identity import CODEC_NAMES
from omlx_cache.codecs.policy import CodecPolicy, LayerShape
from omlx_cache.kv import trim_to_offset
from omlx_cache.pages.layout import Leaf, layout_of
from omlx_cache.tools import size as sizing
from omlx_cache.tools.size import SizingError, caches_of, config_path, read_config
from omlx_cache.tools.size_trace import trace
from omlx_cache_daemon.cli import main

GIB = 2**30
LLAMA_7B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA_3_8B = {**LLAMA_7B, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "torch_dtype": "bfloat16",
}
QWEN3_NEXT_80B = CONFIGS["Qwen3-Next-80B-A3B"]
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": CONFIGS["Gemma 3 27B"],
    "torch_dtype": "bfloat16",
}
DBRX = {
    "model_type": "dbrx",
    "vocab_size": 100_352,
    "d_model": 6144,
    "n_layers": 40,
    "n_heads": 48,
    "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4},
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000},
    "torch_dtype": "bfloat16",
}
NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
MEASURED = one_of_each(name for name in WORKING if name != "deepseek_v41")
LENGTH = 10


def estimate(config: dict[str, Any], **options: Any) -> sizing.Estimate:
    """As the product's, but traced here: a process for each would take a second."""
    return sizing.estimate(trace(config), **options)


def configuration(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    return {**family.config, "torch_dtype": NAMES[family.dtype]}


def used_leaves(name: str) -> list[Leaf]:
    """The caches of a model that has computed `LENGTH` tokens, without slack."""
    model = build(name)
    caches = upstream.make_prompt_cache(model)
    mx.eval(model(mx.array([list(range(1, LENGTH + 1))]), cache=caches))
    trim_to_offset(caches)
    return [leaf for leaf in layout_of(caches).leaves if leaf.adapter.arrays(leaf.cache)]


@pytest.mark.parametrize("name", MEASURED)
def test_every_array_of_every_cache_is_accounted_for(name: str) -> None:
    held: dict[GroupSpec, tuple[int, int]] = {}
    for leaf in used_leaves(name):
        caches, nbytes = held.get(leaf.group, (0, 0))
        held[leaf.group] = caches + 1, nbytes + leaf.cache.nbytes
    result = estimate(configuration(name), context=LENGTH)
    computed = {(g.kind, g.window): (g.layers, g.context_bytes) for g in result.groups}
    assert computed == {(group.kind, group.window): known for group, known in held.items()}
    assert result.notes == ()


def encoded(codec: Codec | None, array: Any) -> list[Any]:
    return [array] if codec is None else list(codec.encode(array).values())


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "deepseek_v3", "minimax_m3_vl"])
def test_encoded_sizes_are_the_codecs_own(name: str, codec: Any) -> None:
    leaves = used_leaves(name)
    sides = [
        tuple(leaf.adapter.arrays(leaf.cache)[side] for side in ("keys", "values"))
        for leaf in leaves
    ]
    shapes = [
        LayerShape(leaf.group.kind, keys.shape[-1], values.shape[-1], keys.dtype)
        for leaf, (keys, values) in zip(leaves, sides, strict=True)
    ]
    keys_bytes = values_bytes = 0
    for codecs, (keys, values) in zip(CodecPolicy(codec).plan(shapes), sides, strict=True):
        keys_bytes += sum(part.nbytes for part in encoded(codecs.keys, keys))
        values_bytes += sum(part.nbytes for part in encoded(codecs.values, values))
    result = estimate(configuration(name), context=LENGTH, codec=codec)
    totals = result.total("key_bytes"), result.total("value_bytes")
    assert totals == (keys_bytes, values_bytes)


def test_the_totals_of_known_models() -> None:
    seven = estimate(LLAMA_7B, context=4096)
    sizes = {"key_bytes": GIB, "value_bytes": GIB, "token_bytes": 2**19, "block_bytes": 2**27}
    assert {name: seven.total(name) for name in sizes} == sizes
    assert estimate(LLAMA_3_8B).total("context_bytes") == GIB // 2, "grouped queries divide it"
    # A latent is counted once, not for each head.
    assert estimate(DEEPSEEK_V3).total("token_bytes") == 61 * (512 + 64) * 2


def test_recurrent_state_does_not_grow_with_the_context() -> None:
    short, long = (estimate(QWEN3_NEXT_80B, context=n) for n in (64, 64_000))
    state = {group.kind: group for group in short.groups}["state"]
    assert state == {group.kind: group for group in long.groups}["state"]
    assert (state.layers, 75e6 < state.context_bytes < 80e6) == (36, True)
    (paged,) = (group for group in short.groups if group.kind == "paged")
    assert paged.context_bytes == 64 * 12 * 2 * 2 * 256 * 2


def test_windows_are_held_up_to_their_size() -> None:
    result = estimate(GEMMA_3_27B, context=32_768, reserve=10)
    window, paged = result.groups
    assert [(g.kind, g.window, g.layers, g.held_tokens) for g in result.groups] == [
        ("window", 1024, 52, 1024),
        ("paged", paged.window, 10, 32_768),
    ]
    assert window.reserved_bytes == window.context_bytes
    assert paged.reserved_bytes - paged.context_bytes == 10 * paged.token_bytes


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any], str], str]:
    def to_file(config: dict[str, Any], folder: str = "model") -> str:
        path = tmp_path / folder / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
        return str(path)

    return to_file


def test_a_file_a_folder_and_a_hub_id_are_found(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    path = Path(write(LLAMA_7B))
    assert config_path(path) == config_path(path.parent) == path
    model = "hub/models--org--name"
    write(LLAMA_3_8B, f"{model}/snapshots/newer")
    wanted = write(LLAMA_7B, f"{model}/snapshots/abc")
    (tmp_path / model / "refs").mkdir()
    (tmp_path / model / "refs" / "main").write_text("abc")
    assert str(config_path("org/name")) == wanted
    assert read_config("org/name") == LLAMA_7B
    for absent in ("org/absent", "../../absent", "a/b/c", "/nowhere/config.json", str(tmp_path)):
        said = "the folder has no config" if absent == str(tmp_path) else "no such config"
        with pytest.raises(SizingError, match=said):
            config_path(absent)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SizingError, match=r"config\.json"):
        caches_of(path)


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (DBRX, {"memory": 256 << 20}, r"dbrx is not understood: .*evaluates weights"),
        (LLAMA_7B, {"seconds": 0.01}, r"llama is not understood: .*over 0\.01 s"),
        ({"model_type": "llama"}, {}, "llama is not understood: .*missing .*hidden_size"),
        ({"hidden_size": 4096}, {}, "no model_type"),
    ],
)
def test_a_model_that_cannot_be_traced_is_refused_in_one_line(
    config: dict[str, Any], options: Any, said: str
) -> None:
    with pytest.raises(SizingError, match=said) as caught:
        caches_of(config, **options)
    assert "\n" not in str(caught.value)


def test_what_is_refused_within_the_process() -> None:
    with pytest.raises(SizingError, match="grows"):
        trace(configuration("deepseek_v41"))
    with pytest.raises(SizingError, match="model_file"):
        trace({**LLAMA_7B, "model_file": "model.py"})


def test_the_largest_models_are_traced_without_their_weights_and_left_as_they_were() -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for config in (DEEPSEEK_V3, GEMMA_3_27B):
        copy = json.loads(json.dumps(config))
        trace(config)
        assert config == copy
    assert mx.get_peak_memory() - before < 2**20


def test_the_dtype_is_the_language_models_or_the_weights_or_assumed_with_a_note(
    tmp_path: Path,
) -> None:
    assert trace({**LLAMA_7B, "text_config": {"dtype": "float32"}}).itemsize == 4
    unnamed = {name: value for name, value in LLAMA_7B.items() if name != "torch_dtype"}
    (tmp_path / "config.json").write_text(json.dumps(unnamed))
    (tmp_path / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    traced = caches_of(tmp_path)
    assert traced.itemsize == 2
    assert "16 bits" in traced.notes[0]
    weights = {"a": mx.zeros(4), "b": mx.zeros(4), "c": mx.zeros(99, mx.bfloat16)}
    mx.save_safetensors(str(tmp_path / "model-1.safetensors"), weights)
    assert (caches_of(tmp_path).itemsize, caches_of(tmp_path).notes) == (4, ())


@pytest.mark.nightly
def test_where_the_system_holds_no_limit_the_child_stops_itself() -> None:
    code = (
        "import mlx.core as mx; from omlx_cache.tools import size_trace as trace; "
        "held = mx.zeros(2**20); mx.eval(held); trace.watch(2**10)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == sizing.OUT_OF_MEMORY


def test_text_and_documents_say_the_same(write: Any, capsys: Any) -> None:
    assert main(["size", write(LLAMA_7B)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "llama, codec dense, 1 sequence of 4,096 tokens, blocks of 256: 2 GiB"
    assert " ".join(rows[-1].split()) == "all 32 512 KiB 128 MiB - 1 GiB 1 GiB 2 GiB"
    arguments = ["--context", "32k", "--batch", "2", "--reserve", "1k", "--format", "json"]
    assert main(["size", write(GEMMA_3_27B), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    check_output("size", result)
    assert (result["context"], result["reserve"], result["batch"]) == (32_768, 1024, 2)
    assert [group["kind"] for group in result["groups"]] == ["window", "paged"]
    once = estimate(GEMMA_3_27B, context=32_768)
    assert result["context_bytes"] == 2 * once.total("context_bytes"), "a batch of two"
    assert result["token_bytes"] == once.total("token_bytes")
    assert result["reserved_bytes"] > result["context_bytes"]


@pytest.mark.nightly
def test_all_codecs_are_compared(write: Any, capsys: Any) -> None:
    assert main(["size", write(LLAMA_7B), "--codec", "all", "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)
    check_output("size", results)
    sizes = {result["codec"]: result["context_bytes"] for result in results}
    assert sizes["dense"] / sizes["affine8"] == pytest.approx(16 / 8.5)
    assert main(["size", write(QWEN3_NEXT_80B), "--codec", "all"]) == 0
    assert "affine8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("/nowhere/at/all",), 1),
        (("",), 1),
        (("m", "--context", "x"), 2),
        (("m", "--batch", "0"), 2),
    ],
)
def test_a_wrong_command_line_is_said_in_a_line(
    arguments: tuple[str, ...], code: int, capsys: Any
) -> None:
    assert main(["size", *arguments]) == code
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


@pytest.mark.nightly
def test_only_the_child_imports_mlx(write: Any) -> None:
    code = (
        "import sys; from omlx_cache_daemon.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or any(n.split('.')[0] in ('mlx', 'mlx_lm') for n in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code, "size", write(LLAMA_7B)], check=True)
