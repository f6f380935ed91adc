"""NumPy forms of BERT, ViT, GPT-2 and Llama as their papers define them, on arrays by the names of
Hugging Face's files."""

import math

import numpy as np

from tests.reference.classification import softmax

_erf = np.vectorize(math.erf)


def gelu(x):
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def gelu_new(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


class File:
    """Arrays by name, in float64, whose layers are called by the beginning of their names."""

    def __init__(self, arrays, begin=""):
        self.arrays, self.begin = arrays, begin

    def __getitem__(self, name):
        return np.asarray(self.arrays[self.begin + name], np.float64)

    def below(self, begin):
        return File(self.arrays, self.begin + begin)

    def linear(self, name, x):
        """Multiplies by torch's [outputs, inputs], with a bias where there is one."""
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{self.begin}{name}.bias" in self.arrays else y

    def layer_norm(self, name, x, epsilon):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * self[f"{name}.weight"] + self[f"{name}.bias"]

    def rms_norm(self, name, x, epsilon):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * self[f"{name}.weight"]


def attention(q, k, v, heads, seen):
    """One text or image at a time: q [T, D], k and v [T, E], seen bool [T, T]."""
    size, out = q.shape[1] // heads, []
    shared = heads // (k.shape[1] // size)
    for head in range(heads):
        queries = slice(head * size, (head + 1) * size)
        keys = slice(head // shared * size, (head // shared + 1) * size)
        scores = q[:, queries] @ k[:, keys].T / math.sqrt(size)
        out.append(softmax(np.where(seen, scores, -np.inf)) @ v[:, keys])
    return np.concatenate(out, 1)


def bert(arrays, config, tokens):
    """The last layer of one text without padding, float64 [T, D]."""
    file, epsilon = File(arrays), config["layer_norm_eps"]
    x = file["embeddings.word_embeddings.weight"][tokens]
    x = x + file["embeddings.position_embeddings.weight"][: len(tokens)]
    x = x + file["embeddings.token_type_embeddings.weight"][0]
    x = file.layer_norm("embeddings.LayerNorm", x, epsilon)
    seen = np.ones((len(tokens), len(tokens)), bool)
    for i in range(config["num_hidden_layers"]):
        layer = file.below(f"encoder.layer.{i}.")
        qkv = [layer.linear(f"attention.self.{name}", x) for name in ("query", "key", "value")]
        mixed = attention(*qkv, config["num_attention_heads"], seen)
        x = x + layer.linear("attention.output.dense", mixed)
        x = layer.layer_norm("attention.output.LayerNorm", x, epsilon)
        y = layer.linear("output.dense", gelu(layer.linear("intermediate.dense", x)))
        x = layer.layer_norm("output.LayerNorm", x + y, epsilon)
    return x


def vit(arrays, config, image):
    """The tokens of one image [H, W, C] behind the last norm, float64 [1 + patches, D]."""
    file, epsilon, patch = File(arrays), config["layer_norm_eps"], config["patch_size"]
    kernel = file["embeddings.patch_embeddings.projection.weight"]  # [D, C, patch, patch]
    bias = file["embeddings.patch_embeddings.projection.bias"]
    rows = [file["embeddings.cls_token"][0, 0]]
    for top in range(0, image.shape[0], patch):
        for left in range(0, image.shape[1], patch):
            square = image[top : top + patch, left : left + patch]
            rows.append(np.einsum("hwc,dchw->d", square, kernel) + bias)
    x = np.stack(rows) + file["embeddings.position_embeddings"][0]
    seen = np.ones((len(x), len(x)), bool)
    for i in range(config["num_hidden_layers"]):
        layer = file.below(f"encoder.layer.{i}.")
        y = layer.layer_norm("layernorm_before", x, epsilon)
        qkv = [layer.linear(f"attention.attention.{name}", y) for name in ("query", "key", "value")]
        mixed = attention(*qkv, config["num_attention_heads"], seen)
        x = x + layer.linear("attention.output.dense", mixed)
        y = layer.layer_norm("layernorm_after", x, epsilon)
        x = x + layer.linear("output.dense", gelu(layer.linear("intermediate.dense", y)))
    return file.layer_norm("layernorm", x, epsilon)


def gpt2(arrays, config, tokens):
    """The tokens of one text behind the last norm, float64 [T, D]."""
    file, epsilon = File(arrays), config["layer_norm_epsilon"]

    def conv1d(layer, name, x):  # [inputs, outputs]
        return x @ layer[f"{name}.weight"] + layer[f"{name}.bias"]

    x = file["wte.weight"][tokens] + file["wpe.weight"][: len(tokens)]
    seen = np.tril(np.ones((len(tokens), len(tokens)), bool))
    for i in range(config["n_layer"]):
        layer = file.below(f"h.{i}.")
        y = conv1d(layer, "attn.c_attn", layer.layer_norm("ln_1", x, epsilon))
        mixed = attention(*np.split(y, 3, 1), config["n_head"], seen)
        x = x + conv1d(layer, "attn.c_proj", mixed)
        y = gelu_new(conv1d(layer, "mlp.c_fc", layer.layer_norm("ln_2", x, epsilon)))
        x = x + conv1d(layer, "mlp.c_proj", y)
    return file.layer_norm("ln_f", x, epsilon)


def llama(arrays, config, tokens):
    """The tokens of one text behind the last norm, float64 [T, D]."""
    file, epsilon = File(arrays), config["rms_norm_eps"]
    size = config["head_dim"]

    def rotate(x):
        """Multiplies the pair (i, i + size/2), as a complex number, by exp(i t base^(-2 i/size))."""
        heads = x.reshape(len(x), -1, size)
        pairs = heads[..., : size // 2] + 1j * heads[..., size // 2 :]
        speed = config["rope_theta"] ** (-2 * np.arange(size // 2) / size)
        pairs = pairs * np.exp(1j * np.arange(len(x))[:, None, None] * speed)
        return np.concatenate([pairs.real, pairs.imag], -1).reshape(x.shape)

    x = file["embed_tokens.weight"][tokens]
    seen = np.tril(np.ones((len(tokens), len(tokens)), bool))
    for i in range(config["num_hidden_layers"]):
        layer = file.below(f"layers.{i}.")
        y = layer.rms_norm("input_layernorm", x, epsilon)
        q, k, v = (layer.linear(f"self_attn.{name}_proj", y) for name in "qkv")
        mixed = attention(rotate(q), rotate(k), v, config["num_attention_heads"], seen)
        x = x + layer.linear("self_attn.o_proj", mixed)
        y = layer.rms_norm("post_attention_layernorm", x, epsilon)
        gate = silu(layer.linear("mlp.gate_proj", y))
        x = x + layer.linear("mlp.down_proj", gate * layer.linear("mlp.up_proj", y))
    return file.rms_norm("norm", x, epsilon)
