"""Tokenises texts by a word vocabulary of the training texts, or by a Hugging Face tokenizer."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ht.check.packages import needing
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import in_one_line, read_json, read_whole

PADDING, UNKNOWN = 0, 1  # ids; the vocabulary's words follow
WORDS = 32_000
LENGTH = 200

_RULE = str.maketrans({'"': "", ";": " ", ":": " "} | {mark: f" {mark} " for mark in "'.,()!?"})


def tokenised(
    texts: Sequence[str],
    learned: Iterable[int],
    length: int | None,
    tokenizer: Path | None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns texts as token ids, uint16 or int32 [N, length], and the text of each id.

    Texts are cut to `length` tokens, by default `LENGTH`, or padded at the end with `PADDING`. The
    other arguments are those of `token_ids`, and so are the errors.
    """
    length = length or LENGTH
    rows, pieces = token_ids(texts, learned, length, tokenizer)
    tokens = np.full((len(texts), length), PADDING, smallest_type(len(pieces)))
    for padded, row in zip(tokens, rows):
        padded[: len(row)] = row
    return tokens, pieces


def token_ids(
    texts: Sequence[str],
    learned: Iterable[int],
    length: int | None,
    tokenizer: Path | None,
) -> tuple[Iterable[list[int]], tuple[str, ...]]:
    """Returns the token ids of each text, and the text of each id.

    Args:
      texts: the texts.
      learned: indices of the texts from which a vocabulary is learned without a tokenizer. Other
        words are `UNKNOWN`.
      length: most tokens of a text; None for all, without a tokenizer's special tokens.
      tokenizer: file of a trained tokenizer; None for a vocabulary.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    if tokenizer is not None:
        trained = Tokenizer(tokenizer)
        return trained.encode(texts, length), ("", *trained.pieces[1:])
    ids = vocabulary(texts[i] for i in learned)
    rows = ([ids.get(word, UNKNOWN) for word in words(text)[:length]] for text in texts)
    return rows, ("", "?", *ids)


def smallest_type(count: int) -> type[np.integer]:
    """Returns the smallest type that holds `count` token ids."""
    return np.uint16 if count <= 1 << 16 else np.int32


def words(text: str) -> list[str]:
    """Splits a text into words by torchtext's rule "basic_english", as PFLlib and HtFLlib do.

    Converts to lower case, drops double quotes, separates the marks ' . , ( ) ! ? and splits at
    white space, semicolons, colons and "<br />".
    """
    return text.lower().translate(_RULE).replace("<br />", " ").split()


def vocabulary(texts: Iterable[str]) -> dict[str, int]:
    """Returns the ids, from 2 on, of the `WORDS` most frequent words.

    Among equally frequent words, those that come first win.

    Raises:
      ValueError: there are more than `limits.WORDS` different words.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
        limits.keep("the set", len(counts), limits.WORDS, "different words")
    words_in_order = [word for word, _ in counts.most_common(WORDS)]
    return {word: i for i, word in enumerate(words_in_order, UNKNOWN + 1)}


_FILES = ("tokenizer.json", "vocab.txt")


class Tokenizer:
    """A trained tokenizer.

    It adds the special tokens of its file, such as BERT's [CLS] and [SEP].

    Args:
      path: a tokenizer.json, or a vocab.txt of WordPiece.

    Raises:
      ImportError: `tokenizers` is not installed. One line.
      ValueError: the file is too large, or not a tokenizer. One line.
    """

    def __init__(self, path: Path):
        with needing("a tokenizer"):
            import tokenizers
        self._path = path
        with in_one_line(f"{path} is not a tokenizer"):
            content = read_whole(path, limits.TEXT_BYTES).decode()
            if path.suffix == ".json":
                self._tokenizer = tokenizers.Tokenizer.from_str(content)
                if getattr(self._tokenizer.model, "dropout", None):  # gives other ids at every call
                    self._tokenizer.model.dropout = None
                added = self._tokenizer.encode("").tokens
                _compare(json.loads(content), _settings(path), added)
            else:
                self._tokenizer = _word_piece(content, _settings(path))
            ids = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        if not size:
            raise ValueError(f"{path} has no tokens")
        limits.keep(str(path), size, limits.WORDS, "token ids")
        pieces = [""] * size
        for piece, number in ids.items():
            pieces[number] = piece
        self.pieces = tuple(pieces)

    def encode(self, texts: Sequence[str], length: int | None) -> list[list[int]]:
        """Returns at most `length` token ids of each text; None for all, without special tokens.

        Raises:
          ValueError: `length` has room only for special tokens, or an id is not in the vocabulary.
        """
        with in_one_line(f"{self._path} cannot encode the texts"):
            special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
            if length is not None and length <= special:
                raise ValueError(f"text_length {length} only has room for {special} special tokens")
            self._tokenizer.no_padding()
            if length is None:
                self._tokenizer.no_truncation()
            else:
                self._tokenizer.enable_truncation(length)
            is_cut = length is not None
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=is_cut)
        rows = [encoding.ids for encoding in encodings]
        highest = max((max(row, default=0) for row in rows), default=0)
        if highest >= len(self.pieces):
            raise ValueError(
                f"{self._path}: it adds a token with id {highest}, but its vocabulary has "
                f"{len(self.pieces)}"
            )
        return rows


def tokenizer_file(path: str | os.PathLike) -> Path:
    """Returns the file of a tokenizer, given it or its folder.

    Raises:
      FileNotFoundError: there is none. One line.
    """
    place = Path(path).expanduser()
    candidates = [place / name for name in _FILES] if place.is_dir() else [place]
    for file in candidates:
        if file.is_file() and file.suffix in (".json", ".txt"):
            return file
    raise FileNotFoundError(
        f"no tokenizer at {place}; name a tokenizer.json, or a folder with one or with vocab.txt"
    )


def _settings(path: Path) -> dict[str, Any]:
    """Returns the fields of the files beside a tokenizer, with special tokens as text."""
    fields: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        beside = path.with_name(name)
        if beside.is_file():
            fields |= read_json(beside, dict)
    encoder = path.with_name("sentence_bert_config.json")
    if encoder.is_file() and read_json(encoder, dict).get("do_lower_case"):
        fields["do_lower_case"] = True
    for name, value in fields.items():
        if name.endswith("_token") and isinstance(value, dict):
            fields[name] = value.get("content")
    return fields


_TOLD_TWICE = {
    ("normalizer", "lowercase"): "do_lower_case",
    ("normalizer", "strip_accents"): "strip_accents",
    ("normalizer", "handle_chinese_chars"): "tokenize_chinese_chars",
    ("pre_tokenizer", "add_prefix_space"): "add_prefix_space",
}
"""Part and field of tokenizer.json -> the same field of tokenizer_config.json."""


def _compare(content: dict[str, Any], settings: dict[str, Any], added: Sequence[str]) -> None:
    """Rejects a tokenizer.json that tokenizer_config.json would override in transformers.

    Args:
      content: fields of tokenizer.json.
      settings: fields of the files beside it.
      added: tokens that tokenizer.json adds to a text.
    """
    pairs = []
    for (part, field), name in _TOLD_TWICE.items():
        pairs.append((name, (content.get(part) or {}).get(field)))
    if str(settings.get("tokenizer_class")).startswith("Llama"):
        for name in ("bos_token", "eos_token"):
            pairs.append((f"add_{name}", settings.get(name) in added))
    for name, has in pairs:
        asked = settings.get(name)
        if isinstance(has, bool) and isinstance(asked, bool) and has != asked:
            raise ValueError(
                f"tokenizer_config.json has {name} {asked}, but this file {has}; make them equal"
            )


def _word_piece(content: str, settings: dict[str, Any]):
    """Builds BERT's tokenizer from a vocabulary, one piece a line; lower case by default."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    if settings.get("do_basic_tokenize") is False or settings.get("never_split"):
        raise ValueError("tokenizer_config.json has do_basic_tokenize or never_split")
    # splitlines would also split at characters that occur in pieces
    lines = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
    ids = {piece: i for i, piece in enumerate(lines)}
    special = {}
    for name in ("unk_token", "sep_token", "cls_token", "pad_token", "mask_token"):
        if settings.get(name) is not None:
            special[name] = settings[name]
    return BertWordPieceTokenizer(
        ids,
        **special,
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
