"""Methods whose messages privacy cannot cover are refused in one line."""

import functools

import pytest

from fedjax_ht.core.wire import Metadata
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.trust.attacks import attacked
from fedjax_ht.trust.options import Attack, Privacy
from fedjax_ht.trust.privacy import private
from tests.federations import TRAINING, federation_for, normed_federation, uniform_federation
from tests.method_wires import settings

UPLOAD = "reveal which rows or counts they have"
SAMPLE = "send or keep results of samples other than"
SUMS = "reads more than sums of uploads; use 'upload'"
TWICE = "do not train once a round"
TABLE = [  # refused with the units client, upload and sample; by these methods
    (("", "", ""), "fml fedmrl fedral lg_fedavg fedper fedavg local fedprox scaffold feddyn moon"),
    (("", "", "a step of perfedavg compares samples"), "perfedavg"),
    (("", "", ""), "fedit ffa_lora fedsa_lora fedbn ditto apfl pfedmoe fjord depthfl fedcp"),
    (("", "", "keep running statistics of samples"), "feddbe pfedme"),
    # by default FIARSE chooses entries by the server's model, which is no secret
    (("", "", ""), "fiarse fedbabu"),
    (("", "", TWICE), "fedrep pfedes pfedafm"),
    (("", "", SAMPLE), "fedclassavg fedapen fedala fedrod gpfl afl fedcgs qfedavg"),
    # public samples lie beside the clients' own, and are not told apart
    (("", "", SAMPLE), "fedmd dsfl fedhenn"),
    ((SUMS, "", SAMPLE), "ktpfl agnostic"),
    ((SUMS, "", ""), "fedbuff flexlora raflora flora dense fedamp fedspu"),
    ((UPLOAD, UPLOAD, ""), "fedkd hetlora"),
    ((UPLOAD, UPLOAD, "send sums over samples by class"), "fd fedsa_anchors"),
    (
        (UPLOAD, UPLOAD, SAMPLE),
        "fedproto fedtgp fedorgp fedktl fedgh fedssa fedgen fedl2g fedpac fedre fedpft",
    ),
    ((UPLOAD, UPLOAD, SAMPLE), "heterofl dfrd"),
    (("the server of .* reads the clients' samples",) * 3, "heterofl+dfrd"),
]
REFUSED = [(name, {}, lines) for lines, names in TABLE for name in names.split()] + [
    ("fedssa", {"semantic": False}, (SUMS, "", "")),
    ("hetlora", {"prune": False}, (SUMS, "", "")),
    ("fiarse", {"variant": "released"}, (UPLOAD, UPLOAD, "")),
    ("heterofl", {"label_split": False}, ("", "", "")),
    ("fedrolex", {"label_split": False, "masked_loss": True}, ("", "", SAMPLE)),
    ("feddropout", {"label_split": False}, (SUMS, "", "")),
]
FAST = ("fedproto", "fd", "fml", "fedavg", "local", "feddropout")
REFUSALS = [
    pytest.param(name, options, unit, line, marks=[] if name in FAST else pytest.mark.slow)
    for name, options, lines in REFUSED
    for unit, line in zip(("client", "upload", "sample"), lines)
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
    message = r"but rate1.0 normalises by batch; use model.norm='group', 'layer' or 'none'"
    with pytest.raises(ValueError, match=message):
        method.check(normed_federation())


def changed(client_update):
    """FedAvg whose clients do something else; they are given FedAvg's update first."""
    method = METHODS["fedavg"](TRAINING)
    return method._replace(client_update=functools.partial(client_update, method.client_update))


def counting(what):
    """FedAvg whose clients send something else as their count."""

    def client_update(update, bucket, client, downlink, data, ctx):
        client, uplink, metrics = update(bucket, client, downlink, data, ctx)
        return client, uplink._replace(num_samples=Metadata(what(data, ctx))), metrics

    return changed(client_update)


def test_counts_of_ones_own_are_refused():
    for what, line in [
        (lambda data, ctx: data.splits["train"].count, UPLOAD),
        (lambda data, ctx: 1 + ctx.info.id, "send their own counts; a sum needs equal weights"),
    ]:
        with pytest.raises(ValueError, match=line):
            private(counting(what), Privacy("client")).check(uniform_federation())
    beside = private(counting(lambda data, ctx: 1 + ctx.info.id), Privacy("upload"))
    beside.check(uniform_federation())


def test_the_loss_of_training_is_refused():
    """Gradients have noise, their losses do not."""

    def client_update(update, *arguments):
        client, uplink, metrics = update(*arguments)
        return client, (uplink, metrics["loss"]), metrics

    with pytest.raises(ValueError, match=SAMPLE):
        private(changed(client_update), Privacy("sample")).check(uniform_federation())


@pytest.mark.parametrize("unit", ["client", "upload", "sample"])
@pytest.mark.parametrize("kind", ["sign_flip", "noise", "shift"])
def test_attacks_are_not(kind, unit):
    method = attacked(METHODS["fedavg"](TRAINING), Attack(kind), 4)
    private(method, Privacy(unit)).check(uniform_federation())


def test_training_twice_is_refused():
    def client_update(update, bucket, client, *rest):
        client, _, _ = update(bucket, client, *rest)
        return update(bucket, client, *rest)

    twice = private(changed(client_update), Privacy("sample"))
    with pytest.raises(ValueError, match="do not train once a round; their steps are not counted"):
        twice.check(uniform_federation())


def test_fields_have_bounds():
    with pytest.raises(ValueError, match=r"privacy.clip is 0.0; it must be"):
        private(METHODS["fedavg"](TRAINING), Privacy("client", clip=0.0))
