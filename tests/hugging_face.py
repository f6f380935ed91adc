"""Small folders of Hugging Face's layout, of made-up weights, for tests."""

import json

import numpy as np

from fedjax_ht.lab.safe.torch_files import save_safetensors

CONFIGS = {
    "bert": {
        "vocab_size": 30,
        "max_position_embeddings": 12,
        "type_vocab_size": 2,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    },
    "vit": {
        "image_size": 4,
        "patch_size": 2,
        "num_channels": 3,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu",
        "qkv_bias": True,
    },
    "gpt2": {
        "vocab_size": 30,
        "n_positions": 12,
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
    },
    "llama": {
        "vocab_size": 30,
        "max_position_embeddings": 12,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 12,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
}
"""Family -> the fields of a small config.json."""

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int = 8) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def encoder_layer(attention: str, norms: tuple[str, str]) -> Shapes:
    made: Shapes = {}
    for name in ("query", "key", "value"):
        made |= linear(f"{attention}.{name}", 8, 8)
    made |= linear("attention.output.dense", 8, 8)
    made |= linear("intermediate.dense", 12, 8) | linear("output.dense", 8, 12)
    return made | norm(norms[0]) | norm(norms[1])


def gpt2_layer() -> Shapes:
    """Kernels are [inputs, outputs] in GPT-2's files, so that the bias has the last axis."""
    made = norm("ln_1") | norm("ln_2")
    sizes = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 32)}
    for name, shape in (sizes | {"mlp.c_proj": (32, 8)}).items():
        made |= {f"{name}.weight": shape, f"{name}.bias": shape[1:]}
    return made


def llama_layer() -> Shapes:
    made: Shapes = {"input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,)}
    sizes = {"self_attn.q": (16, 16), "self_attn.k": (8, 16), "self_attn.v": (8, 16)}
    sizes |= {"self_attn.o": (16, 16), "mlp.gate": (12, 16), "mlp.up": (12, 16)}
    for name, shape in (sizes | {"mlp.down": (16, 12)}).items():
        made[f"{name}_proj.weight"] = shape
    return made


BERT_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
PATCHES = "embeddings.patch_embeddings.projection"
LAYERS = {
    "bert": ("encoder.layer.{}.", encoder_layer("attention.self", BERT_NORMS)),
    "vit": (
        "encoder.layer.{}.",
        encoder_layer("attention.attention", ("layernorm_before", "layernorm_after")),
    ),
    "gpt2": ("h.{}.", gpt2_layer()),
    "llama": ("layers.{}.", llama_layer()),
}
BESIDE: dict[str, Shapes] = {
    "bert": {
        "embeddings.word_embeddings.weight": (30, 8),
        "embeddings.position_embeddings.weight": (12, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        **norm("embeddings.LayerNorm"),
    },
    "vit": {
        "embeddings.cls_token": (1, 1, 8),
        "embeddings.position_embeddings": (1, 5, 8),
        f"{PATCHES}.weight": (8, 3, 2, 2),
        f"{PATCHES}.bias": (8,),
        **norm("layernorm"),
    },
    "gpt2": {"wte.weight": (30, 8), "wpe.weight": (12, 8), **norm("ln_f")},
    "llama": {"embed_tokens.weight": (30, 16), "norm.weight": (16,)},
}


def shapes(family: str) -> Shapes:
    """Name in a file of the family's bare model -> shape, for the two layers of `CONFIGS`."""
    begin, layer = LAYERS[family]
    made = dict(BESIDE[family])
    for i in range(2):
        made |= {begin.format(i) + name: shape for name, shape in layer.items()}
    return made


def made_up(family: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of a family's file, normal with standard deviation 0.5."""
    rng = np.random.default_rng(seed)
    drawn = {}
    for name, shape in shapes(family).items():
        drawn[name] = (0.5 * rng.standard_normal(shape)).astype(np.float32)
    return drawn


def write_folder(folder, family: str, arrays=None, **fields) -> str:
    """Writes a folder with config.json and model.safetensors; returns its model group."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": family, **CONFIGS[family], **fields}
    (folder / "config.json").write_text(json.dumps(config))
    save_safetensors(folder / "model.safetensors", made_up(family) if arrays is None else arrays)
    return f"hf:{folder}"
