"""Methods whose messages privacy cannot cover are refused in one line."""

import pytest

from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.trust.options import Privacy
from fedjax_ht.trust.privacy import private
from tests.federations import TRAINING, federation_for, normed_federation, uniform_federation
from tests.method_wires import settings

UPLOAD = "say which rows or counts they have"
SAMPLE = "send or keep what they make of samples"
SUMS = "reads more than sums of uploads; take 'upload'"
REFUSED = [
    ("fedproto", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedtgp", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedktl", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedgh", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fd", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": "send sums over samples by class"}),
    ("fedssa", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedssa", {"semantic": False}, {"client": SUMS, "upload": "", "sample": ""}),
    ("fedgen", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedkd", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": ""}),
    ("fedclassavg", {}, {"client": "", "upload": "", "sample": "do not train once a round"}),
    ("fedapen", {}, {"client": "", "upload": "", "sample": SAMPLE}),
    ("fml", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedmrl", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedral", {}, {"client": "", "upload": "", "sample": ""}),
    ("lg_fedavg", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedper", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedavg", {}, {"client": "", "upload": "", "sample": ""}),
    ("local", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedprox", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedbuff", {}, {"client": SUMS, "upload": "", "sample": ""}),
    ("scaffold", {}, {"client": "", "upload": "", "sample": ""}),
    ("feddyn", {}, {"client": "", "upload": "", "sample": ""}),
    ("moon", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedit", {}, {"client": "", "upload": "", "sample": ""}),
    ("hetlora", {"prune": False}, {"client": SUMS, "upload": "", "sample": ""}),
    ("hetlora", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": ""}),
    ("flexlora", {}, {"client": SUMS, "upload": "", "sample": ""}),
    ("flora", {}, {"client": SUMS, "upload": "", "sample": ""}),
    ("ffa_lora", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedsa_lora", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedrep", {}, {"client": "", "upload": "", "sample": "do not train once a round"}),
    ("fedbn", {}, {"client": "", "upload": "", "sample": ""}),
    ("ditto", {}, {"client": "", "upload": "", "sample": ""}),
    ("apfl", {}, {"client": "", "upload": "", "sample": ""}),
    ("fedala", {}, {"client": "", "upload": "", "sample": SAMPLE}),
    ("fedl2g", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("fedpac", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    # public samples lie beside the clients' own, and are not told apart
    ("fedmd", {}, {"client": "", "upload": "", "sample": SAMPLE}),
    ("dsfl", {}, {"client": "", "upload": "", "sample": SAMPLE}),
    ("fedhenn", {}, {"client": "", "upload": "", "sample": SAMPLE}),
    ("pfedes", {}, {"client": "", "upload": "", "sample": "do not train once a round"}),
    ("pfedafm", {}, {"client": "", "upload": "", "sample": "do not train once a round"}),
    ("pfedmoe", {}, {"client": "", "upload": "", "sample": ""}),
    ("ktpfl", {}, {"client": SUMS, "upload": "", "sample": SAMPLE}),
    ("fedre", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    # by default entries are chosen by the server's model, which is no secret
    ("fiarse", {}, {"client": "", "upload": "", "sample": ""}),
    ("fiarse", {"variant": "released"}, {"client": UPLOAD, "upload": UPLOAD, "sample": ""}),
    ("fjord", {}, {"client": "", "upload": "", "sample": ""}),
    ("depthfl", {}, {"client": "", "upload": "", "sample": ""}),
    ("heterofl", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    ("heterofl", {"label_split": False}, {"client": "", "upload": "", "sample": ""}),
    (
        "fedrolex",
        {"label_split": False, "masked_loss": True},
        {"client": "", "upload": "", "sample": SAMPLE},
    ),
    ("feddropout", {"label_split": False}, {"client": SUMS, "upload": "", "sample": ""}),
    ("dense", {}, {"client": SUMS, "upload": "", "sample": ""}),
    ("dfrd", {}, {"client": UPLOAD, "upload": UPLOAD, "sample": SAMPLE}),
    (
        "heterofl+dfrd",
        {},
        dict.fromkeys(
            ("client", "upload", "sample"), "the server of .* reads the clients' samples"
        ),
    ),
]
FAST = ("fedproto", "fd", "fml", "fedavg", "local", "feddropout")
REFUSALS = [
    pytest.param(name, options, unit, line, marks=[] if name in FAST else pytest.mark.slow)
    for name, options, lines in REFUSED
    for unit, line in lines.items()
]


def in_words(x) -> str | None:
    """An id that is the same in every process."""
    return "-".join(map(str, x)) or "usual" if isinstance(x, dict) else None


@pytest.mark.parametrize("name, options, unit, line", REFUSALS, ids=in_words)
def test_messages_that_noise_cannot_hide_are_refused(name, options, unit, line):
    method = private(method_factory(name)(TRAINING, **settings(name) | options), Privacy(unit))
    if not line:
        return method.check(federation_for(name))
    with pytest.raises(ValueError, match=f"^privacy.unit is '{unit}', but .*{line}") as refused:
        method.check(federation_for(name))
    assert "\n" not in str(refused.value)


def test_every_method_is_listed():
    assert {name for name, _, _ in REFUSED} >= set(METHODS) - {"fedftg"}  # as dfrd


def test_a_model_that_normalises_by_batch_is_refused():
    method = private(METHODS["heterofl"](TRAINING, label_split=False), Privacy("sample"))
    with pytest.raises(
        ValueError,
        match=r"but rate1.0 normalises by batch; take model.norm='group', 'layer' or 'none'",
    ):
        method.check(normed_federation())


def counting(what):
    """FedAvg whose clients send something else as their count."""
    method = METHODS["fedavg"](TRAINING)

    def client_update(bucket, client, downlink, data, ctx):
        client, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        return client, uplink._replace(num_samples=Metadata(what(data, ctx))), metrics

    return method._replace(client_update=client_update)


def test_counts_of_ones_own_are_refused():
    for what, line in [
        (lambda data, ctx: data.splits["train"].count, UPLOAD),
        (lambda data, ctx: 1 + ctx.info.id, "send counts of their own; a sum has to weigh alike"),
    ]:
        with pytest.raises(ValueError, match=line):
            private(counting(what), Privacy("client")).check(uniform_federation())
    private(counting(lambda data, ctx: 1 + ctx.info.id), Privacy("upload")).check(
        uniform_federation()
    )


def test_training_twice_is_refused():
    method = METHODS["fedavg"](TRAINING)

    def client_update(bucket, client, downlink, data, ctx):
        client, _, _ = method.client_update(bucket, client, downlink, data, ctx)
        return method.client_update(bucket, client, downlink, data, ctx)

    with pytest.raises(ValueError, match="do not train once a round; nobody counts their steps"):
        private(method._replace(client_update=client_update), Privacy("sample")).check(
            uniform_federation()
        )


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"unit": "person"}, "privacy.unit is 'person'; it must be"),
        ({"clip": 0.0}, "privacy.clip is 0.0; it must be"),
        ({"noise": -1.0}, "privacy.noise is -1.0; it must be"),
        ({"delta": 1.0}, "privacy.delta is 1.0; it must be"),
        ({"secret": (-1,)}, "privacy.secret is "),
    ],
)
def test_fields_have_bounds(fields, line):
    with pytest.raises(ValueError, match=line):
        private(METHODS["fedavg"](TRAINING), Privacy(**{"unit": "client"} | fields))
