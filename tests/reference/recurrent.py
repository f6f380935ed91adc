"""LSTM and GRU step by step and gate by gate, for one sequence, as torch's documentation writes
them."""

import numpy as np


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(kernel, bias, recurrent, recurrent_bias, x):
    """x [T, D] -> h [T, H]; gates i, f, g, o side by side in the weights."""
    h = c = np.zeros(len(recurrent))
    states = []
    for row in x:
        i, f, g, o = np.split(row @ kernel + bias + h @ recurrent + recurrent_bias, 4)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states)


def gru(kernel, bias, recurrent, recurrent_bias, x):
    """x [T, D] -> h [T, H]; gates r, z, n side by side in the weights."""
    h = np.zeros(len(recurrent))
    states = []
    for row in x:
        (pr, pz, pn), (qr, qz, qn) = (
            np.split(row @ kernel + bias, 3),
            np.split(h @ recurrent + recurrent_bias, 3),
        )
        r, z = _sigmoid(pr + qr), _sigmoid(pz + qz)
        h = (1 - z) * np.tanh(pn + r * qn) + z * h
        states.append(h)
    return np.array(states)
