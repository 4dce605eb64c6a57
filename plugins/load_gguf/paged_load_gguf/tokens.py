"""The tokenizer a GGUF file describes in its metadata, rebuilt as a `tokenizers.Tokenizer`.

Two kinds exist in the supported architectures: "gpt2", byte-level BPE with listed merges, whose way of cutting text
into words is only named (`tokenizer.ggml.pre`); and "llama", SentencePiece BPE, whose merges follow from the scores.
Rules are those of llama.cpp's llama-vocab.cpp; the reference encodings of its repository are the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from paged_core.errors import ModelError, ModelFormatError, ModelUnsupportedError
from paged_core.model.tokenizer import TextTokenizer, TokenizerFacts

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type
SPECIAL_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What `tokenizer.ggml.pre` stands for: regular expressions applied one after the other, each cutting further.
WORDS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2_WORDS,),
    "smollm": (r"\p{N}", GPT2_WORDS),
    "llama-bpe": (LLAMA3_WORDS,),
    "qwen2": (LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}"),),
    "tekken": (TEKKEN_WORDS,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "starcoder": "smollm",
    "refact": "smollm",
    "phi-2": "gpt-2",
    "deepseek-r1-qwen": "qwen2",
}
WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "tekken"})  # a word that is a token is taken without merging
BOS_BY_DEFAULT = frozenset({"llama-bpe", "tekken"})  # and every SentencePiece vocabulary
# Files name one end token; a chat model also ends its turn with these (llama.cpp knows them by their text too).
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


class TokenMetadata:
    """The `tokenizer.*` keys of one file, checked. `where` names the file in messages."""

    def __init__(self, metadata: dict[str, Any], where: str) -> None:
        self._metadata = metadata
        self.where = where
        self.is_gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
        self.model: str = self.read("model", str, "")
        if self.model not in ("gpt2", "llama"):
            raise ModelUnsupportedError(
                f"{where}: tokenizer.ggml.model is {self.model!r}; "
                "gpt2 (byte-level BPE) and llama (SentencePiece BPE) are run"
            )
        self.tokens: list[str] = self.read("tokens", list, [])
        if not self.tokens or not isinstance(self.tokens[0], str):
            raise ModelFormatError(f"{where}: tokenizer.ggml.tokens, the vocabulary, is missing")
        self.types: list[int] = self.read("token_type", list, []) or [1] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise ModelFormatError(f"{where}: {len(self.tokens)} tokens, but {len(self.types)} token types")
        named = self.read("pre", str, "default")
        self.pre = ALIASES.get(named, named)

    def read(self, key: str, kind: type, default: Any) -> Any:
        """`tokenizer.ggml.<key>`; raises ModelFormatError when it is of another kind."""
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind) and value is not default:
            found = type(value).__name__
            raise ModelFormatError(f"{self.where}: tokenizer.ggml.{key} is of type {found}, not {kind.__name__}")
        return value

    def token_id(self, key: str) -> int | None:
        """`tokenizer.ggml.<key>_token_id`, checked against the vocabulary; -1 and absent mean there is none."""
        value: int | None = self.read(f"{key}_token_id", int, None)
        if value is None or value in (-1, 0xFFFFFFFF):
            return None
        if not 0 <= value < len(self.tokens):
            message = f"{self.where}: tokenizer.ggml.{key}_token_id is {value}, outside the {len(self.tokens)} tokens"
            raise ModelFormatError(message)
        return value

    def ids_of_type(self, token_type: int) -> list[int]:
        """Ids of the tokens of one type, in order."""
        return [token_id for token_id, kind in enumerate(self.types) if kind == token_type]

    def eos_ids(self) -> tuple[int, ...]:
        """End tokens: the stated ones, then control tokens whose text is a known end of turn. Ordered, no doubles."""
        stated = [self.token_id(key) for key in ("eos", "eot", "eom")]
        by_text = [token_id for token_id in self.ids_of_type(CONTROL) if self.tokens[token_id] in TURN_ENDS]
        return tuple(dict.fromkeys(token_id for token_id in [*stated, *by_text] if token_id is not None))

    def chat_templates(self) -> dict[str, str]:
        """Template sources by name; the unnamed one is "default"."""
        prefix = "tokenizer.chat_template"
        found = {key: value for key, value in self._metadata.items() if key == prefix or key.startswith(prefix + ".")}
        return {key[len(prefix) + 1 :] or "default": value for key, value in found.items() if isinstance(value, str)}


def build_tokenizer(tokens: TokenMetadata) -> TextTokenizer:
    """The tokenizer of a file. Raises ModelFormatError or ModelUnsupportedError naming the metadata key."""
    try:
        tokenizer = BUILDERS[tokens.model](tokens)
    except ModelError:
        raise
    except Exception as error:  # `tokenizers` raises plain Exception, e.g. for a merge of tokens that do not exist
        raise ModelFormatError(f"{tokens.where}: the tokenizer in its metadata is damaged: {error}") from error
    special = tokens.ids_of_type(CONTROL) + tokens.ids_of_type(UNKNOWN)
    tokenizer.add_special_tokens([AddedToken(tokens.tokens[i], special=True, normalized=False) for i in special])
    # Runs of spaces respelled for the model are left to its merges: as added tokens they would be new to it.
    user_defined = [tokens.tokens[token_id] for token_id in tokens.ids_of_type(USER_DEFINED)]
    known = [text for text in user_defined if tokenizer.token_to_id(text) is not None]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in known])
    _add_ends(tokenizer, tokens)
    ids = {name: tokens.token_id(key) for name, key in SPECIAL_NAMES.items()}
    facts = TokenizerFacts(
        bos_token_id=tokens.token_id("bos"),
        eos_token_ids=tokens.eos_ids(),
        special_token_ids=frozenset(special),
        special_tokens={name: tokens.tokens[token_id] for name, token_id in ids.items() if token_id is not None},
        chat_templates=tokens.chat_templates(),
    )
    return TextTokenizer(tokenizer, facts)


def _byte_level(tokens: TokenMetadata) -> Tokenizer:
    if tokens.pre not in WORDS:
        known = ", ".join([*WORDS, *ALIASES])
        raise ModelUnsupportedError(f"{tokens.where}: tokenizer.ggml.pre {tokens.pre!r} is not one of {known}")
    merges = [tuple(merge.split(" ", 1)) for merge in tokens.read("merges", list, [])]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens.tokens)}
    whole = tokens.pre in WHOLE_WORDS_FIRST
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole))
    cuts: list[Any] = [pre_tokenizers.Split(Regex(words), behavior="isolated") for words in WORDS[tokens.pre]]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    if tokens.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: TokenMetadata) -> Tokenizer:
    unknown = tokens.token_id("unknown")
    texts = _spaces_respelled(tokens)
    model = models.BPE(
        vocab={token: token_id for token_id, token in enumerate(texts)},
        merges=_merges_from_scores(tokens, texts),
        unk_token=tokens.tokens[unknown] if unknown is not None else None,
        fuse_unk=True,
        byte_fallback=bool(tokens.ids_of_type(BYTE)),
    )
    tokenizer = Tokenizer(model)
    prefix = tokens.read("add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


BUILDERS: dict[str, Callable[[TokenMetadata], Tokenizer]] = {"gpt2": _byte_level, "llama": _sentencepiece}


def _spaces_respelled(tokens: TokenMetadata) -> list[str]:
    """Some converters store tokens of several spaces literally; the model works on "▁"."""
    return ["▁" * len(text) if len(text) > 1 and not text.strip(" ") else text for text in tokens.tokens]


def _merges_from_scores(tokens: TokenMetadata, texts: list[str]) -> list[tuple[str, str]]:
    """Merge rules equal to SentencePiece's "join the neighbours whose union scores best".

    Every way to cut a piece into two pieces is a rule; rules of better pieces come first. Control, unknown and byte
    tokens never take part, so a user who types "<0x41>" gets those six characters. Gemma's vocabulary is in merge
    order, which its files' scores for spaces and markup do not follow.
    """
    scores: list[float] = tokens.read("scores", list, [])
    if tokens.is_gemma:
        scores = [-float(token_id) for token_id in range(len(texts))]
    if len(scores) != len(texts):
        raise ModelFormatError(f"{tokens.where}: {len(texts)} tokens but {len(scores)} tokenizer.ggml.scores")
    barred = (UNKNOWN, CONTROL, BYTE)
    ids = {text: i for i, text in enumerate(texts) if tokens.types[i] not in barred}
    rules: list[tuple[float, int, int, int]] = []
    for text, token_id in ids.items():
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                rules.append((-scores[token_id], token_id, left, right))
    return [(texts[left], texts[right]) for _, _, left, right in sorted(rules)]


def _add_ends(tokenizer: Tokenizer, tokens: TokenMetadata) -> None:
    """BOS in front and EOS behind, where the file or llama.cpp's defaults say so."""
    bos_by_default = tokens.model == "llama" or tokens.pre in BOS_BY_DEFAULT
    bos = tokens.token_id("bos") if tokens.read("add_bos_token", bool, bos_by_default) else None
    eos = tokens.token_id("eos") if tokens.read("add_eos_token", bool, False) else None
    used = {tokens.tokens[token_id]: token_id for token_id in (bos, eos) if token_id is not None}
    if not used:
        return
    front = [] if bos is None else [tokens.tokens[bos]]
    behind = [] if eos is None else [tokens.tokens[eos]]
    pattern = [*front, "$A", *behind]
    tokenizer.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=list(used.items()))
