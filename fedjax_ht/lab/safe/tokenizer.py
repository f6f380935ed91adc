"""Tokenizers of trained models, in the files of Hugging Face's folders."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from fedjax_ht.check.names import short
from fedjax_ht.check.packages import needing
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import read_whole

_FILES = ("tokenizer.json", "vocab.txt")


class Tokenizer:
    """A trained tokenizer.

    It adds the special tokens that its file says, such as BERT's [CLS] and [SEP].

    Args:
      path: a tokenizer.json, or a vocab.txt of WordPiece.

    Raises:
      ImportError: `tokenizers` is not installed. One line.
      ValueError: the file is too large or no tokenizer. One line.
    """

    def __init__(self, path: Path):
        with needing("a tokenizer"):
            import tokenizers
        try:
            content = read_whole(path, limits.TEXT_BYTES).decode()
            if path.suffix == ".json":
                self._tokenizer = tokenizers.Tokenizer.from_str(content)
            else:
                self._tokenizer = _word_piece(path, content)
            ids = self._tokenizer.get_vocab(with_added_tokens=True)
        # the package raises plain exceptions for every fault of a file
        except Exception as error:
            line = str(error).partition("\n")[0]
            raise ValueError(f"{path} is no tokenizer ({short(line, 200)})") from error
        size = max(ids.values(), default=-1) + 1
        if not size:
            raise ValueError(f"{path} has no tokens")
        limits.keep(str(path), size, limits.WORDS, "token ids")
        pieces = [""] * size
        for piece, number in ids.items():
            pieces[number] = piece
        self.pieces = tuple(pieces)

    def encode(self, texts: Sequence[str], length: int) -> list[list[int]]:
        """Returns the token ids of texts, at most `length` of each.

        Raises:
          ValueError: the special tokens alone are more.
        """
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if length <= special:
            raise ValueError(
                f"texts are cut to {length} tokens, of which {special} are the tokenizer's special "
                "ones; set text_length higher"
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns all token ids of texts, without special tokens."""
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def tokenizer_file(path: str | os.PathLike) -> Path:
    """Returns the file of a tokenizer, which may be named by its folder.

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


def _word_piece(path: Path, content: str):
    """Builds BERT's tokenizer of a vocabulary, a line each, in small letters unless the folder's
    tokenizer_config.json says otherwise."""
    from tokenizers.implementations import BertWordPieceTokenizer

    beside, lowercase = path.with_name("tokenizer_config.json"), True
    if beside.is_file():
        settings = json.loads(read_whole(beside, limits.TEXT_BYTES))
        lowercase = settings.get("do_lower_case") is not False
    # not splitlines, which takes characters of some pieces for the ends of lines
    lines = content.replace("\r\n", "\n").removesuffix("\n").split("\n")
    ids = {piece: i for i, piece in enumerate(lines)}
    return BertWordPieceTokenizer(ids, lowercase=lowercase)
