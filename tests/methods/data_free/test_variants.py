"""The two forms of DFRD, DENSE and FedFTG; that the paper's is what the paper prints."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ht.core.context import Context
from fedjax_ht.core.message_forms import uplink_form
from fedjax_ht.core.round import Channel
from fedjax_ht.core.wire import Metadata, chain
from fedjax_ht.lab.config.base import method_config
from fedjax_ht.methods import METHODS, method_factory
from fedjax_ht.methods.data_free.bases import make_base
from fedjax_ht.methods.data_free.dfrd import dfrd
from fedjax_ht.methods.data_free.distil import Objective
from fedjax_ht.methods.data_free.options import FORMS, Distillation
from fedjax_ht.methods.shared.averaging import ModelUplink
from fedjax_ht.methods.shared.variants import settled
from tests import tiny
from tests.federations import TRAINING, sliced_federation, uniform_federation
from tests.methods.data_free.recipes import (
    EMBEDDING,
    IMAGES,
    LABELS,
    MERGED,
    STUDENT,
    TAU,
    TEACHERS,
    losses_of,
    synthetic,
)
from tests.reference import dfrd as reference
from tests.reference.gradients import numerical_gradient

CHANNEL = Channel(chain(()), chain(()))


def losses(name: str, variant: str, **options):
    return losses_of(METHODS[name], variant, **options)[1]


def by_student(objective: Objective):
    """The generator's loss, and its slope by the student's logits."""

    def loss(student):
        return objective.generator(synthetic(student=student))

    return jax.value_and_grad(loss)(jnp.float32(STUDENT))


def test_the_paper_is_the_default():
    for name in ("dfrd", "dense", "fedftg", "fedrolex+dfrd"):
        assert inspect.signature(method_factory(name)).parameters["variant"].default == "paper"


def test_dfrd_s_paper_losses_are_the_printed_equations():
    """Eqs. 2 to 5 and 7, in value and in the slope by teachers and student."""
    paper = losses("dfrd", "paper")
    chosen = reference.selected(np.einsum("nb,nbc->bc", TAU, TEACHERS), STUDENT, LABELS, "diamond")
    assert 0 < len(chosen) < len(LABELS)
    value, slope = by_student(paper)

    def slow(student):
        return reference.generator_loss(TEACHERS, TAU, student, LABELS, IMAGES, MERGED)

    np.testing.assert_allclose(value, slow(STUDENT), rtol=1e-5)
    np.testing.assert_allclose(slope, numerical_gradient(slow, STUDENT), rtol=1e-3, atol=2e-5)
    assert np.abs(slope).max() > 0.01
    slope = jax.grad(lambda teachers: paper.generator(synthetic(teachers)))(jnp.float32(TEACHERS))

    def slow(teachers):
        return reference.generator_loss(teachers, TAU, STUDENT, LABELS, IMAGES, MERGED)

    np.testing.assert_allclose(slope, numerical_gradient(slow, TEACHERS), rtol=1e-3, atol=2e-5)
    want = reference.global_loss(TEACHERS, TAU, STUDENT)
    np.testing.assert_allclose(paper.student(synthetic()), want, rtol=1e-5)


def test_dfrd_s_released_losses_are_other_ones():
    """No slope by the student, temperature 10, and the embedding's term."""
    released = losses("dfrd", "released")
    value, slope = by_student(released)
    assert (slope == 0).all()
    u = np.einsum("nb,nbc->bc", TAU, TEACHERS)
    want = np.mean([reference.kl(t / 10, s / 10) for t, s in zip(u, STUDENT)])
    np.testing.assert_allclose(released.student(synthetic()), want, rtol=1e-4)
    without = losses("dfrd", "released", b_ey=0.0).generator(synthetic())
    excess = reference.embedding_excess(EMBEDDING, 1.0)
    np.testing.assert_allclose(value - without, 0.25 * excess, rtol=1e-4)


def test_an_option_that_is_given_stays_in_either_form():
    """Also one that is given as the other variant has it."""
    options = {"temperature": 4.0, "temperature_squared": True}
    for variant, other in (("paper", "released"), ("released", "paper")):
        for name, value in FORMS[other].items():
            given = "uniform" if value is None else value
            assert settled(variant, {name: given}, FORMS)[name] == given
        mixed = losses("dfrd", variant, **options, distil_order="teacher_student")
        want = reference.student_loss("dfrd", TEACHERS, TAU, STUDENT, 4.0, True)
        np.testing.assert_allclose(mixed.student(synthetic()), want, rtol=1e-5)


def test_an_embedding_term_is_a_choice_of_the_released_form_alone():
    assert FORMS["paper"]["b_ey"] == 0 and FORMS["released"]["b_ey"] == 0.25
    assert losses_of(dfrd)[0] == Distillation(
        alpha=0.5,
        temperature=1.0,
        counts="this_round",
        tran_order="teacher_student",
        student_path=True,
        distil_order="student_teacher",
    )


def test_dense_s_paper_form_is_dense_s_own_adversarial_term():
    """nabla, over the batch, KL(ensemble || student) through both: what adversarial="own" is."""
    value, slope = by_student(losses("dense", "paper"))
    other, other_slope = by_student(losses("dense", "released", adversarial="own"))
    np.testing.assert_allclose(value, other, rtol=1e-6)
    np.testing.assert_allclose(slope, other_slope, rtol=1e-6, atol=1e-8)
    u = np.einsum("nb,nbc->bc", TAU, TEACHERS)
    want = np.mean([-reference.log_softmax(u[b])[LABELS[b]] for b in range(len(LABELS))])
    np.testing.assert_allclose(
        value, want + reference.l_tran(u, STUDENT, LABELS, "nabla"), rtol=1e-5
    )


def test_fedftg_s_paper_form_sums_over_classes_and_leads_through_both():
    paper = losses("fedftg", "paper")
    alone = losses("fedftg", "paper", b_md=0.0)

    def apart(s):
        return paper.generator(synthetic(student=s)) - alone.generator(synthetic(student=s))

    def slow(s):
        return -reference.weighted_kl(TEACHERS, np.broadcast_to(s, TEACHERS.shape), TAU)

    value, slope = jax.value_and_grad(apart)(jnp.float32(STUDENT))
    np.testing.assert_allclose(value, slow(STUDENT), rtol=1e-4)
    np.testing.assert_allclose(slope, numerical_gradient(slow, STUDENT), rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(paper.student(synthetic()), -slow(STUDENT), rtol=1e-5)
    rest = losses("fedftg", "paper", b_md=0.0, b_div=0.0).generator(synthetic())
    own = [[-reference.log_softmax(row)[y] for row, y in zip(x, LABELS)] for x in TEACHERS]
    np.testing.assert_allclose(rest, np.mean(np.sum(TAU * own, 0)), rtol=1e-5)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("base", ["fedavg", "heterofl"])
def test_the_base_weighs_clients_as_the_variant_says(base, variant):
    """By data size (Eq. 1) in the paper's form, else as the base does; an option overrides both."""

    federation = sliced_federation()

    def weighs_by_samples(**options) -> bool:
        method = method_factory(f"{base}+dfrd")(TRAINING, variant=variant, **options)
        uplink = uplink_form(method, federation, federation.buckets[0], CHANNEL)
        return uplink.model.num_samples != ()

    assert weighs_by_samples() == (variant == "paper" or base == "fedavg")
    assert not weighs_by_samples(weighting="uniform") and weighs_by_samples(weighting="samples")


def test_eq_1_is_the_mean_by_data_size():
    """The server averages two clients' models before it distils."""
    federation, (few, many) = uniform_federation(), (3, 9)
    method = make_base("fedavg", TRAINING, "paper").method
    params = jax.jit(lambda key: method.init_server(federation, key))(jax.random.key(0))
    models = [jax.tree.map(lambda x, i=i: x + i, params) for i in (1.0, 3.0)]
    uplinks = {
        i: ModelUplink(model, Metadata(np.int32(count)))
        for i, (model, count) in enumerate(zip(models, (few, many)))
    }
    order = {federation.buckets[0].name: [0, 1]}
    received = tiny.receive(uplinks, order, {0: few, 1: many})
    new, _ = method.server_update(
        federation, params, received, Context(jax.random.key(0), jnp.int32(0), None)
    )
    for got, *leaves in zip(*map(jax.tree.leaves, (new, *models))):
        np.testing.assert_allclose(got, reference.aggregate(leaves, [few, many]), rtol=1e-6)


def test_options_of_a_config_are_the_variant_s_until_they_are_set():
    options = method_config("fedrolex+dfrd").options
    assert options.variant == "paper"
    for name in {*FORMS["paper"]} - {"selection", "kl_reduce"}:  # of DENSE and FedFTG
        assert options[name] is None, name
    options.counts, options.student_path, options.temperature = "full", False, 4
    assert (options.counts, options.student_path, options.temperature) == ("full", False, 4.0)
