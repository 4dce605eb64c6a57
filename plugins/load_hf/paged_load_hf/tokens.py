"""The tokenizer of a Hugging Face folder, from tokenizer.json and the small files beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, processors

from paged_core.errors import ModelFormatError, ModelUnsupportedError
from paged_core.model.tokenizer import TextTokenizer, TokenizerFacts

if TYPE_CHECKING:
    from paged_load_hf.folder import ModelFolder

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# These classes of transformers rebuild the post-processor from add_bos_token and add_eos_token.
FLAGS_RULE = frozenset({"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"})


def eos_ids(folder: ModelFolder, config: dict[str, Any]) -> tuple[int, ...]:
    """End tokens as generation_config.json lists them, else config.json."""
    for values in (folder.json("generation_config.json"), config, config.get("text_config") or {}):
        stated = values.get("eos_token_id") if isinstance(values, dict) else None
        if stated is not None:
            ids = stated if isinstance(stated, list) else [stated]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise ModelFormatError(f"{folder.path}: eos_token_id {stated!r} is not a token id or a list of them")
            return tuple(dict.fromkeys(ids))
    return ()


def build_tokenizer(folder: ModelFolder, config: dict[str, Any]) -> TextTokenizer:
    """Raises ModelFormatError naming the damaged file, ModelUnsupportedError when there is no tokenizer to read."""
    settings = folder.json("tokenizer_config.json")
    tokenizer = _read_fast(folder) if (folder.path / "tokenizer.json").is_file() else _convert_slow(folder)
    _add_missing_tokens(tokenizer, settings, folder)
    names = _special_texts({**folder.json("special_tokens_map.json"), **settings})
    ids = {name: tokenizer.token_to_id(text) for name, text in names.items()}
    if settings.get("tokenizer_class") in FLAGS_RULE and "add_bos_token" in settings:
        _apply_flags(tokenizer, settings, names, ids)
    own_eos = ids.get("eos_token")
    stated = eos_ids(folder, config)
    facts = TokenizerFacts(
        bos_token_id=ids.get("bos_token"),
        # The tokenizer's own end token counts too: base and chat versions of a model often differ only here.
        eos_token_ids=stated if own_eos is None or own_eos in stated else (*stated, own_eos),
        special_token_ids=frozenset(token_id for token_id in ids.values() if token_id is not None),
        special_tokens=names,
        chat_templates=_chat_templates(folder, settings),
    )
    return TextTokenizer(tokenizer, facts)


def _read_fast(folder: ModelFolder) -> Tokenizer:
    path = folder.path / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises plain Exception
        raise ModelFormatError(f"{path} is damaged or of a newer format: {error}") from error


def _convert_slow(folder: ModelFolder) -> Tokenizer:
    """From tokenizer.model or vocab.json + merges.txt, by transformers, whose import takes seconds: only if needed."""
    if not any((folder.path / name).is_file() for name in ("tokenizer.model", "vocab.json", "spiece.model")):
        raise ModelUnsupportedError(f"{folder.path} has no tokenizer.json, tokenizer.model or vocab.json")
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(folder.path), trust_remote_code=False, local_files_only=True)
        backend = slow.backend_tokenizer
    except Exception as error:  # anything from a missing optional package to a damaged vocabulary
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelUnsupportedError(
            f"{folder.path} has no tokenizer.json, and transformers cannot build one from its other files: {cause}"
        ) from error
    if not isinstance(backend, Tokenizer):
        raise ModelUnsupportedError(f"{folder.path}: its {type(slow).__name__} has no fast form; save a tokenizer.json")
    return backend


def _add_missing_tokens(tokenizer: Tokenizer, settings: dict[str, Any], folder: ModelFolder) -> None:
    """Tokens that only tokenizer_config.json knows (fine-tunes add them there)."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise ModelFormatError(f"{folder.path}/tokenizer_config.json: added_tokens_decoder is not an object")
    for key, token in sorted(listed.items(), key=lambda item: (len(item[0]), item[0])):
        text = _text_of(token)
        if text is None or not key.isdecimal():
            raise ModelFormatError(f"{folder.path}/tokenizer_config.json: added token {key!r} is malformed")
        if tokenizer.token_to_id(text) is None:
            added = AddedToken(text, special=bool(token.get("special")), normalized=bool(token.get("normalized")))
            tokenizer.add_tokens([added])
        if tokenizer.token_to_id(text) != int(key):
            found = tokenizer.token_to_id(text)
            raise ModelFormatError(
                f"{folder.path}: token {text!r} is {found} in tokenizer.json but {key} in tokenizer_config.json"
            )


def _special_texts(values: dict[str, Any]) -> dict[str, str]:
    texts = {name: _text_of(values.get(name)) for name in SPECIAL_NAMES}
    return {name: text for name, text in texts.items() if text is not None}


def _text_of(token: Any) -> str | None:
    """A token is written as its text or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _apply_flags(
    tokenizer: Tokenizer, settings: dict[str, Any], names: dict[str, str], ids: dict[str, int | None]
) -> None:
    pattern, used = ["$A"], []
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    if settings.get("add_bos_token") and bos is not None:
        pattern.insert(0, names["bos_token"])
        used.append((names["bos_token"], bos))
    if settings.get("add_eos_token") and eos is not None:
        pattern.append(names["eos_token"])
        used.append((names["eos_token"], eos))
    tokenizer.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=used)


def _chat_templates(folder: ModelFolder, settings: dict[str, Any]) -> dict[str, str]:
    """By name: chat_template.jinja, else chat_template in tokenizer_config.json: a text, or a list of named ones."""
    stated = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stated, str):
        templates["default"] = stated
    elif isinstance(stated, list):
        pairs = [(item.get("name"), item.get("template")) for item in stated if isinstance(item, dict)]
        templates = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    own = folder.text("chat_template.jinja")
    if own is not None:
        templates["default"] = own
    for path in sorted((folder.path / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = folder.text(f"additional_chat_templates/{path.name}") or ""
    return templates
