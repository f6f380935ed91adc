"""Model groups `hf:FOLDER`: the extractor that an untrusted folder's config.json describes."""

import hashlib
import re
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import numpy as np

from fedjax_ht.check.names import listed
from fedjax_ht.check.options import Positive, Within, check_value
from fedjax_ht.core.inputs import InputShape, Pixels, Preprocess, described, is_array
from fedjax_ht.lab.safe.bounded import read_json, sha256_of
from fedjax_ht.lab.weights.hugging_face import transformers
from fedjax_ht.lab.weights.hugging_face.names import Names
from fedjax_ht.lab.weights.hugging_face.transformers import ACTIVATIONS, Sizes
from fedjax_ht.models.groups import require_tokens
from fedjax_ht.models.layers import Linear
from fedjax_ht.models.split import SplitModel

PREFIX = "hf:"
WEIGHTS = "model.safetensors"
_BYTES = 1 << 20  # most of a JSON file; those of models have a few thousand
_LARGEST = 1 << 20  # largest size in config.json, such as a number of token ids
_LAYERS = 1000


class Settings(NamedTuple):
    """A folder and the fields of its config.json, or of another file.

    Attributes:
      folder: the folder.
      fields: name -> JSON value.
      file: name of the file.
    """

    folder: Path
    fields: dict[str, Any]
    file: str = "config.json"

    @property
    def place(self) -> str:
        """The file's path, for messages."""
        return str(self.folder / self.file)

    def wrong(self, field: str, rule: str) -> ValueError:
        """Returns the error for a field whose value violates a rule."""
        return ValueError(f"{self.place}: {field} is {self.fields.get(field)!r:.60}; {rule}")

    def beside(self, file: str) -> "Settings":
        """Returns the fields of another file in the folder; none if it is missing."""
        place = self.folder / file
        return Settings(self.folder, read_json(place, dict, _BYTES) if place.exists() else {}, file)

    def choice(self, field: str, known: Collection[str], default: str = "") -> str:
        """Returns a field with one of the known names; `default` if absent or null.

        It suggests no similar name, with which the weights would compute something else.
        """
        value = self.fields.get(field)
        value = default if value is None else value
        if not isinstance(value, str) or value not in known:
            raise self.wrong(field, f"only models with {listed(list(known))} are supported")
        return value

    def value(self, field: str, annotation: Any, default: Any = None) -> Any:
        """Returns a field that an annotation allows; `default` if absent or null."""
        value = self.fields.get(field)
        value = default if value is None else value
        check_value(f"{self.place}: {field}", value, annotation)
        return value

    def count(
        self, field: str, default: int | None = None, *, divisor: int = 1, most: int = _LARGEST
    ) -> int:
        """Returns a multiple of `divisor`, 1 to `most`; `default` if absent or null."""
        value = self.value(field, Annotated[int, Within(1, most)], default)
        if value % divisor:
            raise self.wrong(field, f"it must be a multiple of {divisor}")
        return value

    def require(self, field: str, value: Any) -> None:
        """Rejects a field with another value than the only supported one, unless absent or null."""
        actual = self.fields.get(field)
        if actual is not None and actual != value:
            raise self.wrong(field, f"only models with {value!r} are supported")

    def rotary_base(self) -> float:
        """Returns the base of rotary positions, which newer files have in "rope_parameters".

        Raises:
          ValueError: the positions are scaled, as in models for long texts.
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
                raise self.wrong(name, "only rotary positions without scaling are supported")
            fields = fields | values
        return float(Settings(self.folder, fields).value("rope_theta", Positive, 10_000.0))

    def by_channel(self, field: str, channels: int) -> np.ndarray:
        """Returns one number per channel; 0.5 if the field is absent."""
        value = self.fields.get(field)
        values = [0.5 if value is None else value] if not isinstance(value, list) else value
        plain = all(type(x) in (int, float) and abs(x) < float("inf") for x in values)
        if not plain or len(values) not in (1, channels):
            raise self.wrong(field, f"it must be {channels} finite numbers")
        return np.array(values * (channels // len(values)), np.float64)


def read_settings(folder: Path) -> Settings:
    """Reads the config.json of a folder.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is not a JSON object, or the model is not supported. One line.
    """
    place = folder / "config.json"
    if not place.is_file():
        raise FileNotFoundError(
            f"no config.json in {folder}; name a Hugging Face folder with config.json and "
            "model.safetensors"
        )
    settings = Settings(folder, read_json(place, dict, _BYTES))
    settings.require("quantization_config", None)
    if "AutoModel" in str(settings.fields.get("auto_map")).replace("AutoModelFor", ""):
        raise ValueError(f"{place}: auto_map names the folder's own code, which is not run")
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder / 'adapter_config.json'}: adapters in a folder are not supported"
        )
    return settings


def _encoder(folder: Path) -> Path:
    """Returns the sentence encoder's folder if a folder is its 0_Transformer, else the folder."""
    if re.match(r"\d+_", folder.name) and (folder.parent / "modules.json").exists():
        return folder.parent
    return folder


def _modules(root: Path) -> list[tuple[str, str]]:
    """Returns (kind, folder) of a sentence encoder's modules after its transformer."""
    place, modules = root / "modules.json", []
    if place.exists():
        for entry in read_json(place, list, _BYTES):
            fields = entry if isinstance(entry, dict) else {}
            path, kind = fields.get("path"), str(fields.get("type"))
            if not isinstance(path, str) or Path(path).name != path or path == "..":
                raise ValueError(f"{place}: {entry!r:.60} is not a module of the folder")
            if kind.startswith("sentence_transformers."):
                kind = kind.rpartition(".")[2]
            modules.append((kind, path))
    else:
        for path in sorted(child.name for child in root.iterdir() if child.is_dir()):
            if match := re.fullmatch(r"\d+_([A-Z]\w*)", path):
                modules.append((match[1], path))
    return [module for module in modules if module[0] != "Transformer"]


def pooling(settings: Settings, known: Collection[str], default: str) -> tuple[str, bool]:
    """Returns how a text's features are pooled, and whether they are scaled to length 1.

    Args:
      settings: the folder's settings.
      known: the family's modes.
      default: the mode if the folder is not a sentence encoder's.

    Raises:
      ValueError: the folder has another mode, several modes, or another module. One line.
    """
    root = _encoder(settings.folder)
    modules, mode = _modules(root), default
    kinds = [kind for kind, _ in modules]
    for i, (kind, path) in enumerate(modules):
        if kind != ("Pooling", "Normalize")[min(i, 1)] or i > 1 or not known:
            raise ValueError(
                f"{root / path}: the module {kind!r:.60} is not supported; only a Transformer is, "
                "followed by Pooling and Normalize in text models"
            )
        if kind == "Pooling":
            mode = _mode(settings._replace(folder=root).beside(f"{path}/config.json"), known)
    encoder = settings._replace(folder=root).beside("config_sentence_transformers.json")
    encoder.require("truncate_dim", None)
    prompts = encoder.fields.get("prompts")
    prompt = encoder.fields.get("default_prompt_name")
    if prompt is not None and (not isinstance(prompts, dict) or prompts.get(str(prompt)) != ""):
        raise encoder.wrong("default_prompt_name", "prompts are not supported")
    return mode, "Normalize" in kinds


def _mode(settings: Settings, known: Collection[str]) -> str:
    """Returns the only mode of a Pooling module, its name without "_token" or "_tokens"."""
    value = settings.fields.get("pooling_mode") or []
    modes = set(map(str, value if isinstance(value, list) else [value]))
    for field in settings.fields:
        if field.startswith("pooling_mode_") and settings.value(field, bool, False):
            modes.add(field.removeprefix("pooling_mode_"))
    modes = {re.sub("_tokens?$", "", mode) for mode in modes}
    if len(modes) != 1 or not modes <= set(known):
        raise ValueError(
            f"{settings.place}: its pooling is {' and '.join(sorted(modes)) or 'none'}; only "
            f"{' or '.join(known)} is supported"
        )
    return modes.pop()


def image_rule(settings: Settings, channels: int) -> Pixels | None:
    """Returns the image normalisation in preprocessor_config.json; None without that file."""
    beside = settings.beside("preprocessor_config.json")
    if not beside.fields:
        return None
    beside.require("do_flip_channel_order", False)
    white = 255.0  # value of white pixels, which a model's processor may rescale
    if beside.value("do_rescale", bool, True):
        white *= beside.value("rescale_factor", Positive, 1 / 255)
    if not beside.value("do_normalize", bool, True):
        return Pixels(np.zeros(channels), np.full(channels, 1 / white))
    mean, std = (beside.by_channel(field, channels) for field in ("image_mean", "image_std"))
    if not (std > 0).all():
        raise ValueError(f"{beside.place}: image_std is {std.tolist()}; it must be above 0")
    return Pixels(mean / white, std / white)


def _compare_rules(settings: Settings, channels: int, given: Preprocess | None) -> None:
    """Warns if the data's rule for pixels differs from the model's."""
    rule, given = image_rule(settings, channels), given or Pixels()
    given = getattr(given, "rule", given)
    if rule is None:
        return
    if isinstance(given, Pixels) and all(
        np.allclose(np.asarray(a, np.float64), b, atol=1e-3) for a, b in zip(given, rule)
    ):
        return
    mean, std = (np.round(values, 4).tolist() for values in rule)
    warnings.warn(
        f"{settings.folder / 'preprocessor_config.json'}: the model's images are normalised by "
        f"image_mean {mean} and image_std {std} of pixels in [0, 1], the data by {given}, which "
        f"changes the features; give the data preprocess=fl.Pixels({mean}, {std}) (ImageNet's are "
        "dataset.normalisation=imagenet)",
        stacklevel=3,
    )


def bert(settings: Settings) -> nn.Module:
    """Builds the encoder that a config.json of BERT describes."""
    settings.require("position_embedding_type", "absolute")
    settings.require("is_decoder", False)
    settings.require("pad_token_id", 0)
    settings.require("pruned_heads", {})
    mode, normalised = pooling(settings, ("cls", "mean"), "cls")
    return transformers.Bert(
        vocabulary=settings.count("vocab_size"),
        positions=settings.count("max_position_embeddings"),
        segments=settings.count("type_vocab_size"),
        sizes=_sizes(settings),
        pooling="mean" if mode == "mean" else "cls",
        normalised=normalised,
    )


def vit(settings: Settings) -> nn.Module:
    """Builds the extractor that a config.json of ViT describes."""
    settings.require("qkv_bias", True)
    pooling(settings, (), "cls")
    patch = settings.count("patch_size", 16)
    side = settings.count("image_size", 224, divisor=patch)
    image = side, side, settings.count("num_channels", 3)
    return transformers.HuggingFaceViT(image, patch, _sizes(settings))


def _sizes(
    settings: Settings,
    epsilon: str = "layer_norm_eps",
    usual: float = 1e-12,
    *,
    activation: str = "gelu",
    has_head_size: bool = False,
) -> Sizes:
    """Reads the sizes that BERT, ViT and Llama share.

    Heads with their own size need not divide the width.
    """
    heads = settings.count("num_attention_heads")
    return Sizes(
        width=settings.count("hidden_size", divisor=1 if has_head_size else heads),
        layers=settings.count("num_hidden_layers", most=_LAYERS),
        heads=heads,
        hidden=settings.count("intermediate_size"),
        epsilon=settings.value(epsilon, Positive, usual),
        activation=settings.choice("hidden_act", ACTIVATIONS, activation),
    )


def gpt2(settings: Settings) -> nn.Module:
    """Builds the extractor that a config.json of GPT-2 describes."""
    settings.require("scale_attn_weights", True)
    settings.require("scale_attn_by_inverse_layer_idx", False)
    settings.require("add_cross_attention", False)
    normalised = pooling(settings, ("lasttoken",), "lasttoken")[1]
    heads = settings.count("n_head")
    width = settings.count("n_embd", divisor=heads)
    sizes = Sizes(
        width=width,
        layers=settings.count("n_layer", most=_LAYERS),
        heads=heads,
        hidden=settings.count("n_inner", 4 * width),
        epsilon=settings.value("layer_norm_epsilon", Positive, 1e-5),
        activation=settings.choice("activation_function", ACTIVATIONS, "gelu_new"),
    )
    vocabulary, positions = settings.count("vocab_size"), settings.count("n_positions")
    return transformers.Gpt2(vocabulary, positions, sizes, normalised)


def llama(settings: Settings) -> nn.Module:
    """Builds the extractor that a config.json of Llama describes."""
    settings.require("attention_bias", False)
    settings.require("mlp_bias", False)
    settings.require("is_causal", True)
    settings.require("use_bidirectional_attention", False)
    settings.require("partial_rotary_factor", 1.0)
    normalised = pooling(settings, ("lasttoken",), "lasttoken")[1]
    has_head_size = settings.fields.get("head_dim") is not None
    sizes = _sizes(settings, "rms_norm_eps", 1e-6, activation="silu", has_head_size=has_head_size)
    key_heads = settings.count("num_key_value_heads", sizes.heads)
    settings.count("num_attention_heads", divisor=key_heads)
    head_size = settings.count("head_dim", sizes.width // sizes.heads, divisor=2)
    vocabulary = settings.count("vocab_size")
    positions = settings.count("max_position_embeddings")
    sizes = sizes._replace(key_heads=key_heads, head_size=head_size, base=settings.rotary_base())
    return transformers.Llama(vocabulary, positions, sizes, normalised)


class Family(NamedTuple):
    """A family of models.

    Attributes:
      kind: class of the extractor.
      build: function from a folder's settings to the extractor.
      names: names of the extractor's arrays in a file.
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
    """Returns the path of the weights file in the folder that a group names."""
    return str(folder_of(group) / WEIGHTS)


def sum_of_model(group: str) -> str | None:
    """Returns the SHA-256 of the files that define a folder's model; None without config.json.

    They are config.json, the list of modules, and the modules' own config.json. The weights have
    their own checksum.
    """
    folder = folder_of(group)
    if not (folder / "config.json").is_file():
        return None
    root = _encoder(folder)
    modules = _modules(root)
    files = [place / "config.json" for place in (folder, *(root / path for _, path in modules))]
    sums = [sha256_of(file) for file in files if file.is_file()]
    return hashlib.sha256(repr((modules, sums)).encode()).hexdigest()


def head_classes(file: str) -> tuple[str, ...] | None:
    """Returns the classes of a head's rows, from the config.json beside a weights file.

    None if its `id2label` has no names for them.
    """
    place = Path(file).expanduser().with_name("config.json")
    labels = read_json(place, dict, _BYTES).get("id2label") if place.is_file() else None
    if not isinstance(labels, dict) or set(labels) != set(map(str, range(len(labels)))):
        return None
    names = tuple(str(labels[str(i)]) for i in range(len(labels)))
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def names_of(module: nn.Module) -> Names | None:
    """Returns the names of a model's arrays in a Hugging Face file; None for other models."""
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
    preprocess: Preprocess | None = None,
) -> dict[str, nn.Module]:
    """Builds the extractor that a folder describes, with a linear head.

    Args:
      group: "hf:FOLDER".
      num_classes, input_shape, feature_dim, vocabulary, preprocess: as for
        `models.registry.model_group`.

    Returns:
      Name of the family -> the model, with random weights.

    Raises:
      FileNotFoundError: the folder has no config.json.
      ValueError: its model is not in `FAMILIES`, or does not fit the samples. One line.
    """
    settings = read_settings(folder_of(group))
    name = settings.choice("model_type", FAMILIES)
    base = FAMILIES[name].build(settings)
    if hasattr(base, "vocabulary"):
        _check_tokens(group, base.vocabulary, input_shape, vocabulary)
    else:
        _check_image(group, base.image, input_shape)
        _compare_rules(settings, base.image[-1], preprocess)
    return {name: SplitModel(base, Linear(num_classes), feature_dim=feature_dim)}


def _check_tokens(group: str, known: int, shape: InputShape, vocabulary: int | None) -> None:
    require_tokens(f"model group {group!r}", shape)
    if not vocabulary or vocabulary > known:
        raise ValueError(
            f"model group {group!r} has {known:,} token ids, but the data have "
            f"{vocabulary or 'an unknown number'}; also use the folder as the data's tokenizer "
            f"(dataset.tokenizer={group.removeprefix(PREFIX)})"
        )


def _check_image(group: str, expected: tuple[int, int, int], shape: InputShape) -> None:
    if shape != expected:
        remedy = f"set dataset.image_size={expected[0]}"
        if is_array(shape) and shape[:2] == expected[:2]:
            remedy = f"give images of {expected[2]} channel(s)"
        raise ValueError(
            f"model group {group!r} takes images {expected}; a sample is {described(shape)}; "
            f"{remedy}"
        )
