"""The groups of text models, HtFLlib's."""

import flax.linen as nn
import jax

from fedjax_ht.core.inputs import InputShape, described
from fedjax_ht.models.text import text_model
from fedjax_ht.models.transformers import text_transformer

_TRANSFORMERS = {  # heads and layers
    "htfe_txt5_1": ((8, 1), (8, 2), (8, 4), (8, 8), (8, 16)),
    "htfe_txt5_2": ((1, 4), (2, 4), (4, 4), (8, 4), (16, 4)),
    "htfe_txt5_3": ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16)),
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
"""HtFLlib's HtFE-txt-2, 4, 6 and 5-1 to 5-3, and every architecture by itself.

The transformer by itself has 8 heads and 2 layers.
"""


def require_tokens(consumer: str, shape: InputShape) -> None:
    """Refuses samples that are no texts, integers [L].

    Args:
      consumer: the group that needs tokens, for the message.
      shape: the shape of one sample as a model sees it.

    Raises:
      ValueError: a sample is something else.
    """
    is_typed = isinstance(shape, jax.ShapeDtypeStruct)
    if not (is_typed and len(shape.shape) == 1 and shape.dtype.kind == "i"):
        raise ValueError(f"{consumer} needs tokens, int [L]; a sample is {described(shape)}")


def text_group(
    name: str,
    num_classes: int,
    input_shape: InputShape,
    feature_dim: int | None,
    vocabulary: int | None,
) -> dict[str, nn.Module]:
    """Builds the modules of a group by name, in the order of the clients.

    Args:
      name: the group's name, one of `TEXT_GROUPS`.
      num_classes, input_shape, feature_dim, vocabulary: arguments as for
        `models.registry.model_group`.

    Raises:
      ValueError: the inputs are no tokens, the number of token ids is not given, or heads do not
        divide `feature_dim`.
    """
    require_tokens(f"model group {name!r}", input_shape)
    if not vocabulary:
        raise ValueError(
            f"model group {name!r} needs vocabulary, the number of token ids (Dataset.vocabulary)"
        )
    size = num_classes, vocabulary, feature_dim or 512
    modules = {}
    for member in _DEALT[name]:
        if isinstance(member, str):
            modules[member] = text_model(member, *size)
        else:
            heads, layers = member
            modules[f"transformer_{heads}_{layers}"] = text_transformer(*size, heads, layers)
    return modules
