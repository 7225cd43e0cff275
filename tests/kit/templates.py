"""Chat templates after the ways of model families, and tokenizers that know their markers."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]

_LAST_QUESTION = """\
{%- set ns = namespace(asked=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}
{%- endfor %}
"""
_TOOLS = """\
{%- if tools %}{{ '<|im_start|>system\\nTools: ' + tools|tojson + '<|im_end|>\\n' }}{% endif %}
"""
_JSON_CALLS = """\
{%- for call in m.tool_calls or [] %}{% set tool_call = call.function %}
{{- '\\n' if m.content|trim or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments|tojson + '}\\n</tool_call>' }}
{%- endfor %}
"""
_RESULT = """\
{%- if m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
"""
_OTHER = """\
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
"""
_ANSWER = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

LOOP_LAST = (
    _TOOLS
    + _LAST_QUESTION
    + "{%- for m in messages %}\n"
    + _RESULT
    + """\
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.asked and (loop.last or m.reasoning_content) %}
{{- '<think>\\n' + (m.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' }}
{{- m.content.lstrip('\\n') }}
{%- else %}{{ m.content }}
{%- endif %}
"""
    + _JSON_CALLS
    + "{{- '<|im_end|>\\n' }}\n"
    + _OTHER
    + _ANSWER
)
"""Reasoning is written since the last question, and always in what comes last."""

LOOP_STRIPPED = (
    _TOOLS
    + _LAST_QUESTION
    + "{%- for m in messages %}\n"
    + _RESULT
    + """\
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if preserve_thinking or loop.index0 > ns.asked %}
{{- '<think>\\n' + (m.reasoning_content or '')|trim + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content|trim }}
{%- for call in m.tool_calls or [] %}
{{- '\\n\\n' if loop.first and m.content|trim else '' }}
{{- '\\n' if not loop.first else '' }}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments|items %}
{{- '<parameter=' + name + '>\\n' + value|string + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
"""
    + _OTHER
    + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
"""Reasoning is written in a tool loop, and dropped when the user speaks; a switch keeps it."""

TOOL_JSON = (
    _TOOLS
    + "{%- for m in messages %}\n"
    + _RESULT
    + """\
{%- elif m.tool_calls %}
{{- '<|im_start|>assistant\\n' + m.content }}
{%- for call in m.tool_calls %}{% set tool_call = call.function %}
{{- '<tool_call>{"parameters": ' + tool_call.arguments|dictsort|string }}
{{- ', "name": "' + tool_call.name + '"}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
"""
    + _OTHER
    + _ANSWER
)
"""Tool calls are written in another way than the model writes them; there is no reasoning."""

PLAIN = (
    _TOOLS
    + "{%- for m in messages %}\n"
    + _RESULT
    + (
        "{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + m.content }}\n"
        + _JSON_CALLS
        + "{{- '<|im_end|>\\n' }}\n"
        + _OTHER
        + _ANSWER
    )
)
"""Everything stays as it came; there is no reasoning."""

OLDER = (
    _TOOLS
    + _LAST_QUESTION
    + """\
{%- for m in messages %}
{%- set is_old = loop.index0 < ns.asked %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>tool\\n' + ('[cleared]' if is_old else m.content) + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n<think>' }}
{%- if m.reasoning_content and (not is_old or (clear_thinking is defined and not clear_thinking)) %}
{{- m.reasoning_content|trim }}
{%- endif %}
{{- '</think>' + m.content|trim }}
"""
    + _JSON_CALLS
    + "{{- '<|im_end|>\\n' }}\n"
    + _OTHER
    + _ANSWER
)
"""Older turns lose their reasoning, which a switch keeps, and the results of their tools."""

TEMPLATES = {
    "loop_last": LOOP_LAST,
    "loop_stripped": LOOP_STRIPPED,
    "tool_json": TOOL_JSON,
    "plain": PLAIN,
    "older": OLDER,
}


def bpe_tokenizer(template: str, corpus: list[str], size: int = 700) -> Any:
    """Return a byte-level tokenizer with merges of its own, trained on a corpus."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(corpus, trainer)
    inner.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made
