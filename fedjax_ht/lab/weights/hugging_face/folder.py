"""Model groups `hf:FOLDER`: the extractor that a folder's config.json describes. The file may come
from anybody."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn

from fedjax_ht.core.inputs import InputShape, described
from fedjax_ht.lab.safe.bounded import read_whole
from fedjax_ht.lab.weights.hugging_face import transformers
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.transformers import ACTIVATIONS, Sizes
from fedjax_ht.models.groups import require_tokens
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel

PREFIX = "hf:"
WEIGHTS = "model.safetensors"
_BYTES = 1 << 20  # of a JSON file; those of models have a few thousand
_LARGEST = 1 << 20  # of a size in config.json, such as a number of token ids
_LAYERS = 1000


class Settings(NamedTuple):
    """A folder and the fields of its config.json.

    Attributes:
      folder: the folder.
      fields: name -> value of JSON.
    """

    folder: Path
    fields: dict[str, Any]

    @property
    def place(self) -> str:
        """The file's path, which begins messages."""
        return str(self.folder / "config.json")

    def count(
        self, field: str, default: int | None = None, *, divisor: int = 1, most: int = _LARGEST
    ) -> int:
        """Returns a positive integer, a multiple of `divisor` and at most `most`; the default where
        the field is left out or null."""
        value = self.fields.get(field)
        value = default if value is None else value
        if type(value) is not int or not 0 < value <= most or value % divisor:
            multiple = f", a multiple of {divisor}" if divisor > 1 else ""
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be a positive integer of at most "
                f"{most:,}{multiple}"
            )
        return value

    def number(self, field: str, default: float) -> float:
        """Returns a positive finite number."""
        value = self.fields.get(field, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be a positive number"
            )
        return float(value)

    def choice(self, field: str, default: str, known: Collection[str]) -> str:
        """Returns one of `known`."""
        value = self.fields.get(field, default)
        if not isinstance(value, str) or value not in known:
            raise ValueError(
                f"{self.place}: {field} is {value!r:.60}; it must be one of {', '.join(known)}"
            )
        return value

    def require(self, field: str, value: Any) -> None:
        """Refuses a model whose field has another value than the only one that is built; a field
        that is left out or null has it."""
        actual = self.fields.get(field)
        if actual is not None and actual != value:
            raise ValueError(
                f"{self.place}: {field} is {actual!r:.60}; only models with {value!r} are built"
            )

    def rotary_base(self) -> float:
        """Returns the base of rotated positions, which newer files have in "rope_parameters".

        Raises:
          ValueError: the positions are scaled, as those of models for long texts.
        """
        fields = self.fields
        for name in ("rope_scaling", "rope_parameters"):
            values = fields.get(name)
            if values is None:
                continue
            kind = "?"
            if isinstance(values, dict):
                kind = values.get("rope_type", values.get("type", "default"))
            if kind != "default":
                raise ValueError(
                    f"{self.place}: {name} is {values!r:.60}; only rotated positions without a "
                    "scale are built"
                )
            fields = fields | values
        return Settings(self.folder, fields).number("rope_theta", 10_000.0)

    def pooling(self) -> Literal["cls", "mean"]:
        """Returns how the features of a text are made: as 1_Pooling/config.json says, of which the
        folders of sentence encoders have one; else the class token's."""
        place = self.folder / "1_Pooling" / "config.json"
        if not place.exists():
            return "cls"
        fields = read_object(place)
        if fields.get("pooling_mode_mean_tokens") is True:
            return "mean"
        if fields.get("pooling_mode_cls_token") is True:
            return "cls"
        raise ValueError(f"{place}: neither the mean of tokens nor the class token is its pooling")


def read_settings(folder: Path) -> Settings:
    """Reads the config.json of a folder.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is no JSON object. One line.
    """
    place = folder / "config.json"
    if not place.is_file():
        raise FileNotFoundError(
            f"no config.json in {folder}; name a folder of Hugging Face's, with config.json and "
            "model.safetensors"
        )
    return Settings(folder, read_object(place))


def read_object(path: Path) -> dict[str, Any]:
    """Reads a small JSON object.

    Raises:
      ValueError: the file is too large, not a regular file, or holds no JSON object. One line.
    """
    try:
        fields = json.loads(read_whole(path, _BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable as JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds no JSON object")
    return fields


def bert(settings: Settings) -> nn.Module:
    """Builds the encoder of a config.json of BERT."""
    settings.require("position_embedding_type", "absolute")
    return transformers.Bert(
        vocabulary=settings.count("vocab_size"),
        positions=settings.count("max_position_embeddings"),
        segments=settings.count("type_vocab_size"),
        sizes=_encoder_sizes(settings),
        pooling=settings.pooling(),
    )


def vit(settings: Settings) -> nn.Module:
    """Builds the extractor of a config.json of ViT."""
    settings.require("qkv_bias", True)
    patch = settings.count("patch_size", 16)
    side = settings.count("image_size", 224, divisor=patch)
    image = side, side, settings.count("num_channels", 3)
    return transformers.HuggingFaceViT(image, patch, _encoder_sizes(settings))


def _encoder_sizes(settings: Settings) -> Sizes:
    """Reads the fields that BERT's config.json and ViT's share."""
    heads = settings.count("num_attention_heads")
    return Sizes(
        width=settings.count("hidden_size", divisor=heads),
        layers=settings.count("num_hidden_layers", most=_LAYERS),
        heads=heads,
        hidden=settings.count("intermediate_size"),
        epsilon=settings.number("layer_norm_eps", 1e-12),
        activation=settings.choice("hidden_act", "gelu", ACTIVATIONS),
    )


def gpt2(settings: Settings) -> nn.Module:
    """Builds the extractor of a config.json of GPT-2."""
    settings.require("scale_attn_weights", True)
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    heads = settings.count("n_head")
    width = settings.count("n_embd", divisor=heads)
    sizes = Sizes(
        width=width,
        layers=settings.count("n_layer", most=_LAYERS),
        heads=heads,
        hidden=settings.count("n_inner", 4 * width),
        epsilon=settings.number("layer_norm_epsilon", 1e-5),
        activation=settings.choice("activation_function", "gelu_new", ACTIVATIONS),
    )
    return transformers.Gpt2(settings.count("vocab_size"), settings.count("n_positions"), sizes)


def llama(settings: Settings) -> nn.Module:
    """Builds the extractor of a config.json of Llama."""
    settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    heads = settings.count("num_attention_heads")
    key_heads = settings.count("num_key_value_heads", heads)
    settings.count("num_attention_heads", divisor=key_heads)
    if settings.fields.get("head_dim") is None:
        head_size = settings.count("hidden_size", divisor=heads) // heads
    else:
        head_size = settings.count("head_dim", divisor=2)
    sizes = Sizes(
        width=settings.count("hidden_size"),
        layers=settings.count("num_hidden_layers", most=_LAYERS),
        heads=heads,
        hidden=settings.count("intermediate_size"),
        epsilon=settings.number("rms_norm_eps", 1e-6),
        activation=settings.choice("hidden_act", "silu", ACTIVATIONS),
        key_heads=key_heads,
        head_size=head_size,
        base=settings.rotary_base(),
    )
    vocabulary = settings.count("vocab_size")
    return transformers.Llama(vocabulary, settings.count("max_position_embeddings"), sizes)


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
    "bert": Family(transformers.Bert, bert, transformers.BERT_NAMES),
    "vit": Family(transformers.HuggingFaceViT, vit, transformers.VIT_NAMES),
    "gpt2": Family(transformers.Gpt2, gpt2, transformers.GPT2_NAMES),
    "llama": Family(transformers.Llama, llama, transformers.LLAMA_NAMES),
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
