"""Invalid results of a method's functions are refused in one line, and errors name the method."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.contract import guarded
from tests.federations import TRAINING, federation_data, mixed_federation

FEDERATION = mixed_federation()
BUCKET = FEDERATION.buckets[0]
METHOD = fl.local(TRAINING)._replace(name="mine", rules=("nearest",))
STATE = {"w": np.zeros((2, 3), np.float32), "n": np.int32(0)}
MASK = np.ones(4, bool)
SCORES = np.zeros((4, BUCKET.num_classes))
ARGUMENTS = {
    "receive": (BUCKET, STATE, (), None, None),
    "client_update": (BUCKET, STATE, (), None, None),
    "server_update": (FEDERATION, STATE, {}, None),
    "predict": (BUCKET, STATE, (), None, MASK),
}
WIDER = STATE | {"w": np.zeros((2, 4), np.float32)}
WHOLE = STATE | {"w": np.zeros((2, 3), np.int32)}


def call(function, out):
    method = guarded(METHOD._replace(**{function: lambda *arguments: out}))
    return getattr(method, function)(*ARGUMENTS[function])


@pytest.mark.parametrize(
    ("function", "out", "message"),
    [
        ("client_update", (STATE, ()), "returns 2 values; it must return"),
        ("client_update", (STATE | {"w": "a"}, (), {}), "must have the same form as its input"),
        ("client_update", STATE, "client_update of 'mine' returns a dict; it must return"),
        ("client_update", (WIDER, (), {}), "it differs in leaves 'w': shapes: (2, 3) != (2, 4)."),
        ("client_update", (STATE, (), {"loss": np.zeros(3)}), "metric 'loss' of client_update of"),
        ("client_update", (STATE, (), 0.5), "returns a float for its metrics, not a dict"),
        ("receive", {"w": STATE["w"]}, "returned by receive of 'mine' must have the same form"),
        ("server_update", STATE, "server_update of 'mine' returns a dict; it must return"),
        (
            "server_update",
            (WIDER, {}),
            "returned by server_update of 'mine' must have the same form",
        ),
        ("server_update", (WHOLE, {}), "types: float32 != int32"),
        ("server_update", (STATE, {"rows": np.zeros(2)}), "metric 'rows' of server_update of"),
        ("predict", SCORES, "predict of 'mine' returns a ndarray; it must return a dict"),
        (
            "predict",
            {"head": SCORES},
            "predict of 'mine' lacks the rule 'nearest'; it returns 'head', but",
        ),
        ("predict", {"nearest": SCORES[:, 0]}, "rule 'nearest' of predict of 'mine' must be"),
    ],
)
def test_invalid_results_are_refused(function, out, message):
    with pytest.raises(ValueError) as error:
        call(function, out)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_function_leaves_what_it_is_given():
    def client_update(bucket, client, downlink, data, ctx):
        client |= {"w": client["w"] + 1}  # an attack would compare the upload with itself
        return client, (), {"loss": 0.5}

    method = guarded(METHOD._replace(client_update=client_update))
    with pytest.raises(ValueError, match="client_update of 'mine' modifies its arguments in place"):
        method.client_update(BUCKET, dict(STATE), (), None, None)


def test_valid_results_pass():
    loss = {"loss": 0.5, "steps": jnp.int32(3)}
    assert call("client_update", (STATE, (), loss)) == (STATE, (), loss)
    assert call("server_update", (STATE, {})) == (STATE, {})
    assert call("predict", {"nearest": SCORES, "head": SCORES}).keys() == {"nearest", "head"}


def test_uploads_are_arrays():
    """A client without samples has a constant number of them, and what is made of it is none."""
    upload = {"steps": np.float32(3), "rate": 0.5, "w": jnp.ones(2)}
    _, sent, _ = call("client_update", (STATE, upload, {"loss": 0.5}))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(sent))
    assert {name: leaf.dtype for name, leaf in sent.items()} == dict.fromkeys(upload, jnp.float32)


def test_errors_name_the_method_before_any_compilation():
    def client_update(bucket, client, downlink, data, ctx):
        return client, (), {"loss": 1.0 if ctx.round > 0 else 0.0}

    method = METHOD._replace(client_update=client_update, rules=("head",))
    simulation = fl.make_simulation(method, FEDERATION, federation_data(FEDERATION))
    stateless = dataclasses.replace(simulation, init=lambda: pytest.fail("a state was made first"))
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        fl.run(stateless, 1)
    start = "while tracing client_update of 'mine' ("
    note = next(note for note in error.value.__notes__ if note.startswith(start))
    assert f"{__file__}, line" in note and "simulation.find_fault(state, jit=False)" in note
