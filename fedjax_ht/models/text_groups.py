"""HtFLlib's groups of text models."""

from collections.abc import Callable

import flax.linen as nn
import jax

from fedjax_ht.core.inputs import InputShape, described
from fedjax_ht.models.text import text_model
from fedjax_ht.models.transformers import text_transformer

_TRANSFORMERS = {  # heads and layers
    "htfe_txt5_1": [(8, layers) for layers in (1, 2, 4, 8, 16)],
    "htfe_txt5_2": [(heads, 4) for heads in (1, 2, 4, 8, 16)],
    "htfe_txt5_3": [(n, n) for n in (1, 2, 4, 8, 16)],
}
_DEALT = {
    "htfe_txt2": ("fasttext", "text_logistic"),
    "htfe_txt4": ("fasttext", "text_logistic", "lstm", "bilstm"),
    "htfe_txt6": ("fasttext", "lstm", "bilstm", (8, 2), "text_logistic", "gru"),
    **_TRANSFORMERS,
    **{name: (name,) for name in ("fasttext", "text_logistic", "lstm", "gru", "bilstm")},
    "text_transformer": ((8, 2),),
}
TEXT_GROUPS = tuple(_DEALT)
"""HtFLlib's HtFE-txt-2, 4, 6 and 5-1 to 5-3, and every architecture by itself, the transformer with
8 heads and 2 layers."""


def token_length(shape: InputShape, who: str) -> int:
    """L of texts, integer [L].

    Raises:
      ValueError: a sample is something else; `who` needs tokens.
    """
    if (
        isinstance(shape, jax.ShapeDtypeStruct)
        and len(shape.shape) == 1
        and shape.dtype.kind == "i"
    ):
        return shape.shape[0]
    raise ValueError(f"{who} needs tokens, int [L]; a sample is {described(shape)}")


def text_group(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    feature_dim: int | None,
    vocabulary: int | None,
) -> dict[str, nn.Module]:
    """The modules of a group by name, in the order of the clients.

    Raises:
      ValueError: the inputs are no tokens, the number of token ids is not given, or heads do not
        divide `feature_dim`.
    """
    token_length(input_shape, f"model group {name!r}")
    if not vocabulary:
        raise ValueError(
            f"model group {name!r} needs vocabulary, the number of token ids (Dataset.vocabulary)"
        )
    size = num_classes, vocabulary, feature_dim or 512

    def module(member) -> tuple[str, Callable]:
        if isinstance(member, str):
            return member, text_model(member, *size)
        heads, layers = member
        return f"transformer_{heads}_{layers}", text_transformer(*size, heads, layers)

    return dict(map(module, _DEALT[name]))
