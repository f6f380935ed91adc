"""Weights of plain PyTorch's text models (`benchmarks.text_torch`) under this library's names."""


def text_weights(name, base):
    """Returns the weights of a text model in torch under this library's names."""
    state = {key: value.detach().numpy().copy() for key, value in base.state_dict().items()}

    def linear(key):
        return {"kernel": state[f"{key}.weight"].T, "bias": state[f"{key}.bias"]}

    def norm(key):
        return {"scale": state[f"{key}.weight"], "bias": state[f"{key}.bias"]}

    def recurrence(suffix):
        return {
            "kernel": state[f"rnn.weight_ih_{suffix}"].T,
            "bias": state[f"rnn.bias_ih_{suffix}"],
            "recurrent_bias": state[f"rnn.bias_hh_{suffix}"],
            "recurrent_kernel": state[f"rnn.weight_hh_{suffix}"].T,
        }

    if name == "text_logistic":
        return {"embedding": {"embedding": state["embedding.weight"]}}
    if name == "fasttext":
        return {
            "mean": {"embedding": {"embedding": state["0.embedding.weight"]}},
            "fc1": linear("1"),
        }
    weights = {"embedding": {"embedding": state["embedding.weight"]}}
    if name == "bilstm":
        both = {"lstm_0": recurrence("l0"), "lstm_0_reverse": recurrence("l0_reverse")}
        return weights | both | {"fc1": linear("fc1")}
    if name != "transformer":
        return weights | {f"{name}_{i}": recurrence(f"l{i}") for i in (0, 1)}
    for i in range(len(base.encoder.layers)):
        at = f"encoder.layers.{i}"
        in_proj = {
            "kernel": state[f"{at}.self_attn.in_proj_weight"].T,
            "bias": state[f"{at}.self_attn.in_proj_bias"],
        }
        weights[f"layers_{i}"] = {
            "self_attn": {"in_proj": in_proj, "out_proj": linear(f"{at}.self_attn.out_proj")},
            **{part: linear(f"{at}.{part}") for part in ("linear1", "linear2")},
            **{part: norm(f"{at}.{part}") for part in ("norm1", "norm2")},
        }
    return weights | {"class_token": state["class_token"]}
