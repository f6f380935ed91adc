"""The text models in plain PyTorch, with padding masked as in ours; imported only with torch."""

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
    """The state of an LSTM or GRU at the end of each text; for a BiLSTM that of each direction.

    Texts are packed to skip padding, or not, which is the same for texts without padding.
    """

    def __init__(self, cell, vocabulary, width, layers=2, both=False, packed=True, dropout=0.0):
        super().__init__()
        self.packed, self.width = packed, width
        self.embedding = nn.Embedding(vocabulary, width, 0)
        self.rnn = getattr(nn, cell)(
            width, width, layers, batch_first=True, dropout=dropout, bidirectional=both
        )
        self.fc1 = nn.Linear(2 * width, width) if both else nn.Identity()
        relu = nn.ReLU() if cell == "LSTM" and not both else nn.Identity()
        self.activate = nn.Sequential(relu, nn.Dropout(dropout))

    def forward(self, tokens):
        lengths = torch.where(tokens != 0, torch.arange(1, tokens.shape[1] + 1), 1).max(1).values
        if not self.packed:
            out = self.rnn(self.embedding(tokens))[0]
            return self.fc1(self.activate(self.ends(out, out[:, -1])))
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.fc1(self.activate(self.ends(out, out[torch.arange(len(tokens)), lengths - 1])))

    def ends(self, out, last):
        """Returns the first direction at the last token, and the other at the first."""
        if not self.rnn.bidirectional:
            return last
        return torch.cat([last[:, : self.width], out[:, 0, self.width :]], 1)


class Transformer(nn.Module):
    """torch's own encoder after sinusoids and a class token."""

    def __init__(self, vocabulary, width, heads, layers, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, 0)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, width, dropout, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.exp(
            torch.arange(0, x.shape[2], 2, dtype=x.dtype) * (-np.log(10000.0) / x.shape[2])
        )
        x = self.drop(x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1)
        hidden = nn.functional.pad(tokens == 0, (1, 0))
        return self.encoder(x, src_key_padding_mask=hidden)[:, 0]


def text_base(name, vocabulary, width, heads=0, layers=0, packed=True, dropout=0.0):
    """Builds the extractor with this name."""
    if name == "text_logistic":
        return Mean(vocabulary, width)
    if name == "fasttext":
        return nn.Sequential(Mean(vocabulary, width), nn.Linear(width, width))
    if name == "transformer":
        return Transformer(vocabulary, width, heads, layers, dropout)
    if name == "bilstm":
        return Recurrent("LSTM", vocabulary, width, 1, True, packed)
    return Recurrent(name.upper(), vocabulary, width, packed=packed, dropout=dropout)


def text_network(name, vocabulary, width, num_classes, packed):
    """Builds the extractor with dropout and a linear head, as the benchmark trains it."""
    dropout = 0.5 if name == "transformer" else 0.2
    return nn.Sequential(
        text_base(name, vocabulary, width, 8, 2, packed, dropout), nn.Linear(width, num_classes)
    )
