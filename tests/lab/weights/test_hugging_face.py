"""Folders of Hugging Face's: forwards beside NumPy's and transformers', files that do not fit."""

import functools
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.weights.hugging_face.folder import weights_file
from tests.hugging_face import CONFIGS, made_up, write_folder
from tests.lab.runs.folders import refused
from tests.reference import hugging_face as reference

CLASSES = 3
TOKENS = jax.ShapeDtypeStruct((6,), jnp.int32)
TEXTS = np.array([[5, 9, 29, 1, 7, 2], [5, 4, 3, 2, 0, 0], [8, 0, 0, 0, 0, 0]], np.int32)
IMAGES = np.random.default_rng(3).normal(size=(2, 4, 4, 3)).astype(np.float32)


def federation_of(group: str, **options):
    is_image = "vit" in group
    shape = (4, 4, 3) if is_image else TOKENS
    modules = fl.model_group(group, CLASSES, shape, vocabulary=30, **options)
    return fl.make_federation(modules, shape, CLASSES, num_clients=1)


def features(group: str, file: str, samples: np.ndarray) -> np.ndarray:
    federation = fl.with_weights(federation_of(group), file, head=False)
    bucket = federation.buckets[0]

    @jax.jit  # operations one by one take longer
    def run(key):
        client = fl.init_variables(bucket, key)
        return fl.own_features(bucket, client, samples, jnp.ones(len(samples), bool))

    return np.asarray(run(jax.random.key(0)))


def expected(family: str, arrays, sample: np.ndarray, pooling: str) -> np.ndarray:
    text = sample if family == "vit" else sample[: np.count_nonzero(sample)]
    tokens = getattr(reference, family)(arrays, CONFIGS[family], text)
    if pooling == "mean":
        return tokens.mean(0)
    return tokens[0] if family in ("bert", "vit") else tokens[-1]


@pytest.mark.parametrize(
    "family, pooling",
    [("bert", "cls"), ("bert", "mean"), ("vit", "cls"), ("gpt2", "last"), ("llama", "last")],
)
def test_features_are_the_papers(family, pooling, tmp_path):
    group, arrays = write_folder(tmp_path / family, family), made_up(family)
    if pooling == "mean":
        (tmp_path / family / "1_Pooling").mkdir()
        place = tmp_path / family / "1_Pooling" / "config.json"
        place.write_text('{"pooling_mode_mean_tokens": true}')
    samples = IMAGES if family == "vit" else TEXTS
    values = features(group, weights_file(group), samples)
    rows = [expected(family, arrays, sample, pooling) for sample in samples]
    np.testing.assert_allclose(values, rows, rtol=0, atol=1e-5)


def test_a_models_prefix_and_other_heads_are_left_out(tmp_path):
    """Files of models with a head put a prefix before the extractor's names."""
    arrays = {f"bert.{name}": array for name, array in made_up("bert").items()}
    arrays |= {"cls.predictions.bias": np.zeros(30, np.float32)}
    arrays |= {"bert.pooler.dense.bias": np.zeros(8, np.float32)}
    group = write_folder(tmp_path / "bert", "bert", arrays)
    fl.with_weights(federation_of(group), weights_file(group), head=False)


def test_norms_of_older_files_are_renamed(tmp_path):
    arrays = {}
    for name, array in made_up("bert").items():
        old = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        arrays[f"bert.{old}"] = array
    group = write_folder(tmp_path / "bert", "bert", arrays)
    base = fl.with_weights(federation_of(group), weights_file(group), head=False).buckets[0].weights
    scale = base["params"]["base"]["embeddings_norm"]["scale"]
    np.testing.assert_array_equal(scale, made_up("bert")["embeddings.LayerNorm.weight"])


def test_heads_that_fit_are_loaded(tmp_path):
    """A vision transformer's classifier is linear; a decoder's embedding scores the next token."""
    arrays = {f"vit.{name}": array for name, array in made_up("vit").items()}
    weight, bias = np.ones((CLASSES, 8), np.float32), np.full(CLASSES, 2.0, np.float32)
    arrays |= {"classifier.weight": weight, "classifier.bias": bias}
    group = write_folder(tmp_path / "vit", "vit", arrays)
    started = fl.with_weights(federation_of(group), weights_file(group), head=True)
    head = started.buckets[0].weights["params"]["head"]
    np.testing.assert_array_equal(head["kernel"], weight.T)
    np.testing.assert_array_equal(head["bias"], bias)

    group = write_folder(tmp_path / "gpt2", "gpt2")
    modules = fl.model_group(group, 30, TOKENS, vocabulary=30)
    federation = fl.make_federation(modules, TOKENS, 30, num_clients=1)
    federation = fl.with_weights(federation, weights_file(group), head=True)
    head = federation.buckets[0].weights["params"]["head"]
    np.testing.assert_array_equal(head["kernel"], made_up("gpt2")["wte.weight"].T)
    assert not head["bias"].any()


def test_a_heads_rows_are_the_datas_classes(tmp_path):
    arrays = {f"vit.{name}": array for name, array in made_up("vit").items()}
    arrays |= {"classifier.weight": np.ones((CLASSES, 8), np.float32)}
    labels = {"id2label": {"0": "Cat", "1": "dog", "2": "emu"}}
    group = write_folder(tmp_path / "vit", "vit", arrays, **labels)
    start = functools.partial(fl.with_weights, federation_of(group), weights_file(group))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start(head=True, class_names=("cat", "dog", "emu"))
        start(head=False)
    message = r"rows of its head are Cat, dog.* classes dog, cat.* same"
    with pytest.raises(ValueError, match=message):
        start(head=True, class_names=("dog", "cat", "emu"))
    for given in (None, ("a", "b", "c")):
        with pytest.warns(UserWarning, match="Cat, dog.*; the data's classes must be these, in"):
            start(head=True, class_names=given)
    group = write_folder(tmp_path / "vit", "vit", arrays, id2label={"0": "LABEL_0"})
    start(head=True)


def changed(**arrays):
    """The arrays of BERT with some changed; None leaves one out."""
    made = made_up("bert") | arrays
    return {name: array for name, array in made.items() if array is not None}


LAYER = "encoder.layer.1.attention.self.query.weight"
TOKEN_TABLE = "embeddings.word_embeddings.weight"
BAD_FILES = {
    rf"the file's {TOKEN_TABLE} has shape \(31, 8\); its": {TOKEN_TABLE: np.ones((31, 8))},
    f"the file has no {LAYER}": {LAYER: None},
    rf"the file's {LAYER} has shape \(7, 8\), transposed": {LAYER: np.ones((8, 7), np.float32)},
    "the file has encoder.layer.2.x, which": {"encoder.layer.2.x": np.ones(3, np.float32)},
    "has non-finite values": {LAYER: np.full((8, 8), np.nan, np.float32)},
}


BAD_CONFIGS = {
    "model_type is 'roberta'; only models with bert, vit, gpt2, llama": {"model_type": "roberta"},
    r"model_type is \['bert'\]; only": {"model_type": ["bert"]},
    "hidden_size is 9; it must be a multiple of 2": {"hidden_size": 9},
    "num_hidden_layers is True; it must be an integer from 1 to 1000": {"num_hidden_layers": True},
    "vocab_size is 10000000000; it must be": {"vocab_size": 10**10},
    "hidden_act is 'gelu_fast'; only models with gelu, gelu_new,": {"hidden_act": "gelu_fast"},
    "layer_norm_eps is nan; it must be a number above 0": {"layer_norm_eps": float("nan")},
    "position_embedding_type is 'relative_key'; only": {"position_embedding_type": "relative_key"},
    "texts have 6 tokens, but the model has 5 positions": {"max_position_embeddings": 5},
    "has 20 token ids, but the data have 30; also use the folder as the data's": {"vocab_size": 20},
}


@pytest.mark.parametrize("message", [*BAD_FILES, *BAD_CONFIGS])
def test_files_that_do_not_fit_and_models_that_are_not_built_are_refused(message, tmp_path):
    arrays = changed(**BAD_FILES.get(message, {}))
    group = write_folder(tmp_path / "bert", "bert", arrays, **BAD_CONFIGS.get(message, {}))
    with refused(message):
        fl.with_weights(federation_of(group), weights_file(group), head=False)


def test_weights_in_several_files_are_refused(tmp_path):
    group = write_folder(tmp_path / "bert", "bert")
    file = tmp_path / "bert" / "model.safetensors"
    file.rename(file.with_name("model-00001-of-00001.safetensors"))
    file.with_name("model.safetensors.index.json").write_text("{}")
    with refused("model.safetensors are in several files; save them as one", FileNotFoundError):
        fl.with_weights(federation_of(group), weights_file(group), head=False)


def test_long_rotations_and_other_images_are_refused(tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0}
    for field in ("rope_scaling", "rope_parameters"):
        group = write_folder(tmp_path / "llama", "llama", **{field: scaling})
        with pytest.raises(ValueError, match=f"{field} is .*; only rotary positions without"):
            federation_of(group)
    group = write_folder(tmp_path / "vit", "vit", image_size=8)
    with pytest.raises(
        ValueError, match=r"\(8, 8, 3\); a .* \(4, 4, 3\); set dataset.image_size=8"
    ):
        federation_of(group)
    group = write_folder(tmp_path / "vit", "vit", num_channels=1)
    with pytest.raises(
        ValueError, match=r"\(4, 4, 1\); a .* \(4, 4, 3\); give images of 1 channel"
    ):
        federation_of(group)


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, "\xff"])
def test_a_config_that_is_no_object_is_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=r"config.json is not (a|readable as) JSON"):
        federation_of(f"hf:{tmp_path}")
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        federation_of(f"hf:{tmp_path / 'nothing'}")


def module(kind: str, path: str) -> dict:
    return {"path": path, "type": f"sentence_transformers.models.{kind}"}


ENCODER = [module("Transformer", ""), module("Pooling", "1_Pooling")]
DENSE, THEIRS = module("Dense", "2_Dense"), {"path": "1_Pooling", "type": "their.Pooling"}
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
PROMPTS = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
POOLING, SENTENCES = "1_Pooling/config.json", "config_sentence_transformers.json"
OTHER_FILES = {
    "its pooling is max and mean; only": {POOLING: MEAN | {"pooling_mode_max_tokens": True}},
    "its pooling is max; only": {POOLING: {"pooling_mode": "max"}},
    "its pooling is none; only": {POOLING: {}},
    "pooling_mode_max_tokens is 2;": {POOLING: {"pooling_mode_max_tokens": 2}},
    "2_Dense: the module 'Dense' is not supported": {
        POOLING: MEAN,
        "modules.json": [*ENCODER, DENSE],
    },
    "3_Dense: the module 'Dense' is not": {
        POOLING: MEAN,
        "3_Dense/config.json": {"in_features": 8},
    },
    "the module 'their.Pooling' is not supported": {"modules.json": [ENCODER[0], THEIRS]},
    "is not a module of the folder": {"modules.json": [module("Pooling", "../other")]},
    "modules.json is not a JSON list": {"modules.json": {}},
    "truncate_dim is 4; only models": {SENTENCES: {"truncate_dim": 4}},
    "default_prompt_name is 'query'; prompts": {SENTENCES: PROMPTS},
    "adapter_config.json: adapters in a folder are not supported": {"adapter_config.json": {}},
    "its pooling is 3; only": {POOLING: {"pooling_mode": 3}},
    r"default_prompt_name is \['a'\]; prompts": {SENTENCES: {"default_prompt_name": ["a"]}},
    "is_decoder is True; only": {"config.json": {"is_decoder": True}},
    "pad_token_id is 1; only": {"config.json": {"pad_token_id": 1}},
    "auto_map names the folder's own code": {
        "config.json": {"auto_map": {"AutoModel": "modeling.Bert"}}
    },
    "quantization_config is .*; only": {"config.json": {"quantization_config": {"bits": 4}}},
}


def with_files(folder, family: str, files) -> str:
    """Writes a folder of a family, and other files beside its config.json."""
    group = write_folder(folder, family, **files.get("config.json", {}))
    for name, content in files.items():
        if name != "config.json":
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content))
    return group


@pytest.mark.parametrize("message", OTHER_FILES)
def test_other_files_that_change_features_are_refused(message, tmp_path):
    with refused(message):
        federation_of(with_files(tmp_path / "bert", "bert", OTHER_FILES[message]))


def test_a_decoder_pools_its_last_token_alone(tmp_path):
    last = {POOLING: {"pooling_mode_lasttoken": True}}
    federation_of(with_files(tmp_path / "gpt2", "gpt2", last))
    with pytest.raises(ValueError, match="its pooling is mean; only lasttoken is supported"):
        federation_of(with_files(tmp_path / "llama", "llama", {POOLING: MEAN}))


def test_an_encoders_normalisation_is_built(tmp_path):
    """Also where the folder named is the transformer's, in the encoder's."""
    files = {POOLING: MEAN, "modules.json": ENCODER}
    group = with_files(tmp_path / "plain", "bert", files)
    plain = features(group, weights_file(group), TEXTS)
    files["modules.json"] = [*ENCODER, module("Normalize", "2_Normalize")]
    group = with_files(tmp_path / "unit", "bert", files)
    unit = features(group, weights_file(group), TEXTS)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain, axis=1)[:, None], atol=1e-6)
    inner = write_folder(tmp_path / "unit" / "0_Transformer", "bert")
    np.testing.assert_array_equal(features(inner, weights_file(inner), TEXTS), unit)


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
RULES = {
    "half": (HALF, fl.Pixels()),
    "defaults": ({"size": 4}, fl.Pixels()),
    "imagenet": (IMAGENET, fl.Pixels(*(np.array(v, np.float32) for v in IMAGENET.values()))),
    "bytes": ({"do_rescale": False, **dict.fromkeys(HALF, [127.5] * 3)}, fl.Pixels()),
    "to [-1, 1]": ({"rescale_factor": 1 / 127.5, "image_mean": 1, "image_std": 1}, fl.Pixels()),
    "as they are": ({"do_normalize": False}, fl.Pixels(0.0, 1.0)),
}


@pytest.mark.parametrize("case", RULES)
def test_a_folders_rule_for_pixels_is_compared(case, tmp_path):
    processor, rule = RULES[case]
    group = with_files(tmp_path / "vit", "vit", {"preprocessor_config.json": processor})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.model_group(group, CLASSES, (4, 4, 3), preprocess=rule)
    with pytest.warns(
        UserWarning, match="images are normalised by image_mean .* changes the features"
    ):
        fl.model_group(group, CLASSES, (4, 4, 3), preprocess=fl.Pixels(0.4, 0.3))


@pytest.mark.parametrize(
    "message, processor",
    [
        ("image_std is .*; it must be above 0", {"image_std": [1, 0, 1]}),
        ("image_mean is .*; it must be 3 finite numbers", {"image_mean": [0.5, 0.5]}),
        ("image_mean is .*; it must be 3 finite numbers", {"image_mean": ["0.5"] * 3}),
        ("do_normalize is 'no'; it must be True or False", {"do_normalize": "no"}),
        ("do_flip_channel_order is True; only", {"do_flip_channel_order": True}),
    ],
)
def test_a_rule_for_pixels_that_is_none_is_refused(message, processor, tmp_path):
    group = with_files(tmp_path / "vit", "vit", {"preprocessor_config.json": processor})
    with pytest.raises(ValueError, match=message):
        federation_of(group)
