"""A character tokeniser with a chat template, for models of 128 tokens."""

import string
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

VOCAB = 128
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINKING = ["<think>", "</think>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Reasoning is dropped from every answer but the one that is being written.
STRIPS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


def tokenizer(
    thinking: bool = False, template: str | None = None, markers: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Return a tokeniser with a chat template; every token is one printable character, or one of
    the markers that a template of its own has."""
    markers = THINKING if thinking else list(markers)
    specials = SPECIALS + markers
    characters = [c for c in string.printable if c not in "\r\t\x0b\x0c"]
    others = [chr(code) for code in range(0x3B1, 0x3B1 + 64)]
    words = (specials + characters + others)[:VOCAB]
    inner = Tokenizer(
        models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token=words[0])
    )
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIALS)
    inner.add_tokens(markers)
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        unk_token=words[0],
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = template or (STRIPS_REASONING if thinking else CHATML)
    return made
