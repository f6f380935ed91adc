"""Model groups `hf:FOLDER`: the extractor that a folder's config.json describes."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn

from fedjax_ht.core.inputs import InputShape, described
from fedjax_ht.lab.weights.hugging_face import bert, decoders, vit
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.settings import Settings, read_settings
from fedjax_ht.models.groups import require_tokens
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel

PREFIX = "hf:"
WEIGHTS = "model.safetensors"


class Family(NamedTuple):
    """A family of models.

    Attributes:
      kind: class of the extractor.
      build: function of a folder's settings -> the extractor.
      names: the names of the extractor's arrays in a file.
    """

    kind: type[nn.Module]
    build: Callable[[Settings], nn.Module]
    names: Names


FAMILIES = {
    "bert": Family(bert.Bert, bert.bert, bert.NAMES),
    "vit": Family(vit.HuggingFaceViT, vit.vit, vit.NAMES),
    "gpt2": Family(decoders.Gpt2, decoders.gpt2, decoders.GPT2_NAMES),
    "llama": Family(decoders.Llama, decoders.llama, decoders.LLAMA_NAMES),
}
"""`model_type` of a config.json -> the family."""


def folder_of(group: str) -> Path:
    """Returns the folder that a group names."""
    return Path(group.removeprefix(PREFIX)).expanduser()


def weights_file(group: str) -> str:
    """Returns the path of the file of weights in the folder that a group names."""
    return str(folder_of(group) / WEIGHTS)


def names_of(module: nn.Module) -> Names | None:
    """Returns the names of a model's arrays in a file of Hugging Face's; None for other models."""
    base = getattr(module, "base", None)
    for family in FAMILIES.values():
        if type(base) is family.kind:
            return family.names
    return None


def folder_group(
    group: str,
    num_classes: int,
    input_shape: InputShape,
    feature_dim: int | None,
    vocabulary: int | None,
) -> dict[str, nn.Module]:
    """Builds the extractor that a folder describes, with a linear head.

    Args:
      group: "hf:FOLDER".
      num_classes, input_shape, feature_dim, vocabulary: arguments as for
        `models.registry.model_group`.

    Returns:
      Name of the family -> the model, whose weights are random.

    Raises:
      FileNotFoundError: the folder has no config.json.
      ValueError: its model is none of `FAMILIES`, or does not fit the samples. One line.
    """
    settings = read_settings(folder_of(group))
    name = settings.choice("model_type", "", FAMILIES)
    base = FAMILIES[name].build(settings)
    if hasattr(base, "vocabulary"):
        _check_tokens(group, base.vocabulary, input_shape, vocabulary)
    else:
        _check_image(group, base.image, input_shape)
    return {name: SplitModel(base, Linear(num_classes), feature_dim=feature_dim)}


def _check_tokens(group: str, known: int, shape: InputShape, vocabulary: int | None) -> None:
    require_tokens(f"model group {group!r}", shape)
    if not vocabulary or vocabulary > known:
        raise ValueError(
            f"model group {group!r} has {known:,} token ids, and the data have "
            f"{vocabulary or 'an unknown number'}; give the folder as the data's tokenizer, too "
            f"(dataset.tokenizer={group.removeprefix(PREFIX)})"
        )


def _check_image(group: str, expected: tuple[int, int, int], shape: InputShape) -> None:
    if shape != expected:
        raise ValueError(
            f"model group {group!r} takes images {expected}; a sample is {described(shape)}; set "
            f"dataset.image_size={expected[0]}"
        )
