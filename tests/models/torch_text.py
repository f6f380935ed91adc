"""The text models in plain PyTorch, padding masked as here, and where their weights stand."""

import numpy as np
import torch
from torch import nn


class Mean(nn.Module):
    """The mean embedding of the tokens that are not 0."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, 0)

    def forward(self, tokens):
        return self.embedding(tokens).sum(1) / (tokens != 0).sum(1).clamp(min=1)[:, None]


class Recurrent(nn.Module):
    """LSTM and GRU: packed, their state at the end of each text; both directions' outputs there of a BiLSTM."""

    def __init__(self, cell, vocabulary, width, layers=2, both=False):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, 0)
        self.rnn = getattr(nn, cell)(width, width, layers, batch_first=True, bidirectional=both)
        self.fc1 = nn.Linear(2 * width, width) if both else nn.Identity()
        self.activate = nn.ReLU() if cell == "LSTM" and not both else nn.Identity()

    def forward(self, tokens):
        lengths = torch.where(tokens != 0, torch.arange(1, tokens.shape[1] + 1), 1).max(1).values
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths, True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.fc1(self.activate(out[torch.arange(len(tokens)), lengths - 1]))


class Transformer(nn.Module):
    """torch's own encoder behind sinusoids and a class token."""

    def __init__(self, vocabulary, width, heads, layers, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, 0)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.exp(
            torch.arange(0, x.shape[2], 2, dtype=x.dtype) * (-np.log(10000.0) / x.shape[2])
        )
        x = x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        hidden = nn.functional.pad(tokens == 0, (1, 0))
        return self.encoder(x, src_key_padding_mask=hidden)[:, 0]


def text_base(name, vocabulary, width, heads=0, layers=0):
    """The extractor of this name."""
    if name == "text_logistic":
        return Mean(vocabulary, width)
    if name == "fasttext":
        return nn.Sequential(Mean(vocabulary, width), nn.Linear(width, width))
    if name == "transformer":
        return Transformer(vocabulary, width, heads, layers)
    if name == "bilstm":
        return Recurrent("LSTM", vocabulary, width, 1, both=True)
    return Recurrent(name.upper(), vocabulary, width)


def text_weights(name, base):
    """Its weights as the extractor here has them, blocks one beside another."""
    state = {key: value.detach().numpy().copy() for key, value in base.state_dict().items()}
    linear = lambda key: {"kernel": state[f"{key}.weight"].T, "bias": state[f"{key}.bias"]}  # noqa: E731
    norm = lambda key: {"scale": state[f"{key}.weight"], "bias": state[f"{key}.bias"]}  # noqa: E731

    def recurrence(suffix, hidden=True):
        found = {
            "kernel": state[f"rnn.weight_ih_{suffix}"].T,
            "bias": state[f"rnn.bias_ih_{suffix}"],
            "recurrent_bias": state[f"rnn.bias_hh_{suffix}"],
        }
        return found | ({"recurrent_kernel": state[f"rnn.weight_hh_{suffix}"].T} if hidden else {})

    if name == "text_logistic":
        return {"embedding": {"embedding": state["embedding.weight"]}}
    if name == "fasttext":
        return {"mean": {"embedding": {"embedding": state["0.embedding.weight"]}}, "fc1": linear("1")}
    found = {"embedding": {"embedding": state["embedding.weight"]}}
    if name == "bilstm":
        reverse = recurrence("l0_reverse", hidden=False)
        return found | {"lstm_0": recurrence("l0"), "lstm_0_reverse": reverse, "fc1": linear("fc1")}
    if name != "transformer":
        return found | {f"{name}_{i}": recurrence(f"l{i}") for i in (0, 1)}
    for i in range(len(base.encoder.layers)):
        at = f"encoder.layers.{i}"
        in_proj = {
            "kernel": state[f"{at}.self_attn.in_proj_weight"].T,
            "bias": state[f"{at}.self_attn.in_proj_bias"],
        }
        found[f"layers_{i}"] = {
            "self_attn": {"in_proj": in_proj, "out_proj": linear(f"{at}.self_attn.out_proj")},
            **{part: linear(f"{at}.{part}") for part in ("linear1", "linear2")},
            **{part: norm(f"{at}.{part}") for part in ("norm1", "norm2")},
        }
    return found | {"class_token": state["class_token"]}
