"""Times a client's training step on texts, model by model, and a plain PyTorch loop.

    python -m benchmarks.text --out=benchmarks/results/text.md
    python -m benchmarks.text --models=lstm --widths=32,128 --cores=1

Ours is the real round of `local`. Each measurement has its own process, PyTorch's before and after
ours; without torch its columns are empty. Both have the same number of cores: PyTorch as threads,
ours as one device per core if there are several.
"""

import json

import jax
import numpy as np
from absl import app, flags

from benchmarks import beside_torch
from benchmarks.beside_torch import BATCH, CLIENTS, CORES, HOW, STEPS
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.cli import parse_flags
from fedjax_ht.models import text_model, text_transformer

MODELS = ("fasttext", "text_logistic", "lstm", "gru", "bilstm", "transformer")
LENGTH, VOCABULARY, CLASSES = 200, 32_000, 4
# AG News: 43 on average, 99 % at most 85
TEXTS = {"full": "200 tokens", "short": "14 to 85 tokens"}

_MODELS = flags.DEFINE_list("models", list(MODELS), "What to measure.")
_WIDTHS = flags.DEFINE_list("widths", ["64"], "Features.")
_TEXTS = flags.DEFINE_list("texts", list(TEXTS), "How long they are.")


def samples(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random token ids int32 [count, LENGTH], and labels."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCABULARY, (count, LENGTH)).astype(np.int32)
    if kind == "short":
        tokens[np.arange(LENGTH) >= rng.triangular(14, 40, 85, count)[:, None].round()] = 0
    return tokens, rng.integers(0, CLASSES, count)


def measure_here(name: str, width: int, kind: str, cores: int) -> dict:
    """Returns the figures of a child process on so many cores."""
    beside_torch.pinned(cores)
    if HOW.value == "ours":
        tokens, labels = samples(kind, CLIENTS * STEPS.value * BATCH)
        dataset = Dataset("random texts", tokens, labels, tuple("0123"), vocabulary=VOCABULARY)
        size = CLASSES, VOCABULARY, width
        return beside_torch.ours(
            text_transformer(*size) if name == "transformer" else text_model(name, *size), dataset
        )
    from benchmarks.text_torch import text_network

    tokens, labels = samples(kind, STEPS.value * BATCH)
    packed = bool((tokens == 0).any())

    def network():
        return text_network(name, VOCABULARY, width, CLASSES, packed)

    return beside_torch.theirs(network, tokens.astype(np.int64), labels, cores)


def main(_) -> None:
    jax.config.update("jax_default_matmul_precision", "float32")
    cases = [
        (m, w, t, c)
        for t in _TEXTS.value
        for m in _MODELS.value
        for w in _WIDTHS.value
        for c in CORES.value
    ]
    if HOW.value:
        name, width, kind, cores = cases[0]
        print(json.dumps(measure_here(name, int(width), kind, int(cores))))
        return
    rows, version = [], ""
    for name, width, kind, cores in cases:
        arguments = [f"--models={name}", f"--widths={width}", f"--texts={kind}"]
        cells, version = beside_torch.row("benchmarks.text", arguments, cores)
        rows.append([name, width, TEXTS[kind], *cells])
    what = f"{LENGTH} places, {VOCABULARY:,} token ids, {CLASSES} classes, dropout in both"
    note = "; its recurrent layers packed where there is padding. "
    note += "The transformer has 8 heads and 2 layers"
    beside_torch.publish_rows(
        what, ("model", "features", "texts", *beside_torch.HEAD), rows, version, note
    )


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
