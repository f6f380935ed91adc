import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_ht.core.programs import equations
from fedjax_ht.ops import conv, conv2d, conv_transpose2d, patches
from tests.reference import conv as ref

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Case(NamedTuple):
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    features: int = 4


CASES = {
    "valid": Case((6, 5), (3, 2)),
    "one pixel kernel": Case((3, 2), (1, 1)),
    "strided one pixel kernel": Case((5, 4), (1, 1), stride=2),
    "padded": Case((4, 5), (3, 3), padding=1),
    "strided, last column unseen": Case((7, 6), (3, 2), stride=2),
    "strided, padded": Case((5, 6), (3, 3), stride=2, padding=1),
    "stride beyond the kernel": Case((7, 8), (2, 2), stride=3),
    "one pixel image": Case((1, 1), (3, 3), padding=1),
    "first taps never meet data": Case((1, 3), (5, 5), stride=2, padding=2),
    "an output that sees padding only": Case((2, 2), (1, 2), padding=1),
    "depthwise": Case((5, 4), (3, 3), padding=1, groups=3, features=3),
    "depthwise, strided, last row unseen": Case((6, 5), (3, 2), stride=2, groups=3, features=3),
    "depthwise, strided, padded": Case((6, 5), (3, 3), stride=2, padding=1, groups=3, features=3),
    "depthwise, one pixel image": Case((1, 1), (3, 3), padding=1, groups=3, features=3),
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolution(case, lowering=None):
    return lambda x, kernel: conv2d(
        x, kernel, case.stride, case.padding, case.groups, lowering=lowering
    )


@pytest.mark.parametrize("lowering", [None, "native", "patches"])
def test_a_kernel_larger_than_the_image_is_refused(lowering):
    message = "a kernel of 3 does not fit 2 pixels with padding 0; use larger images"
    with pytest.raises(ValueError, match=message):
        conv2d(normal(2, 4, 2, 3), normal(3, 3, 3, 4), lowering=lowering)


def pulled_back(f):
    """(x, kernel, upstream) -> (f(x, kernel), gradients of sum(upstream * f(x, kernel)))."""

    def run(x, kernel, upstream):
        out, pull = jax.vjp(f, x, kernel)
        return out, *pull(upstream)

    return run


def drawn(case, clients=2, batch=2):
    """x, kernel and upstream of some clients."""
    x = normal(clients, batch, *case.image, 3)
    kernel = normal(clients, *case.kernel, 3 // case.groups, case.features, seed=1)
    out = jax.eval_shape(convolution(case), x[0], kernel[0]).shape
    return x, kernel, normal(clients, *out, seed=2)


def by_reference(case, x, kernel, upstream):
    options = (case.stride, case.padding, case.groups)
    return ref.conv2d(x, kernel, *options), *ref.conv2d_gradients(x, kernel, upstream, *options)


def assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lowerings_equal_the_reference_for_one_client_and_for_two(case):
    arguments = drawn(case)
    native, by_patches = (
        pulled_back(convolution(case, lowering)) for lowering in ("native", "patches")
    )
    second = [a[1] for a in arguments]
    want = by_reference(case, *second)
    single, other, stacked = jax.jit(
        lambda two, single: (native(*single), by_patches(*single), jax.vmap(by_patches)(*two))
    )(arguments, second)
    assert_close(single, want)
    assert_close(other, want)
    assert_close([a[1] for a in stacked], want)


@pytest.mark.parametrize("name", ["padded", "depthwise"])
def test_clients_may_share_their_images(name):
    x, kernel, upstream = drawn(CASES[name])
    run = jax.jit(jax.vmap(pulled_back(convolution(CASES[name], "patches")), in_axes=(None, 0, 0)))
    got = run(x[0], kernel, upstream)
    assert_close([a[1] for a in got], by_reference(CASES[name], x[0], kernel[1], upstream[1]))


def program(lowering, case=CASES["padded"]):
    arguments = normal(2, *case.image, 3), normal(*case.kernel, 3 // case.groups, case.features)
    upstream = np.zeros(convolution(case)(*arguments).shape, np.float32)
    run = pulled_back(convolution(case, lowering))
    return list(equations(jax.make_jaxpr(run)(*arguments, upstream).jaxpr))


@pytest.mark.parametrize("lowering", ["patches", "native"])
@pytest.mark.parametrize("precision", ["float32", "tensorfloat32"])
def test_products_follow_jaxs_switch_of_precision(lowering, precision):
    with jax.default_matmul_precision(precision):
        kinds = ("dot_general", "conv_general_dilated")
        products = [e for e in program(lowering) if e.primitive.name in kinds]
    assert len(products) == 3  # forward, by input, by kernel
    expected = {"float32": lax.Precision.HIGHEST, "tensorfloat32": lax.Precision.HIGH}
    assert {p for e in products for p in e.params["precision"]} == {expected[precision]}


def test_a_gradient_takes_no_convolution():
    assert not any(e.primitive.name == "conv_general_dilated" for e in program(None))


# Layers that XLA's own convolution serves where no gradient is taken.
NATIVE = {
    "padded": ((2, 8, 7, 20), (3, 3, 20, 24), 1, 1),
    "strided, last row unseen": ((2, 8, 7, 4), (3, 3, 4, 24), 2, 0),
    "one channel": ((2, 9, 9, 1), (5, 5, 1, 20), 1, 0),
}


@pytest.mark.parametrize("layer", NATIVE.values(), ids=NATIVE)
def test_a_pass_without_gradient_is_native_and_its_gradient_is_that_of_patches(layer):
    x_shape, kernel_shape, stride, padding = layer
    x, kernel = normal(*x_shape), normal(*kernel_shape, seed=1)

    def convolve(x, kernel):
        return conv2d(x, kernel, stride, padding)

    def by_patches(x, kernel):
        margin = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        return patches.convolve_in_cache(jnp.pad(x, margin), kernel, stride)

    def gradients(f, *wrt):
        return jax.jit(jax.grad(lambda *arguments: jnp.sum(f(*arguments) ** 2), wrt))

    forward = jax.jit(convolve)
    assert "conv_general_dilated" in str(jax.make_jaxpr(forward)(x, kernel))
    expected = ref.conv2d(x, kernel, stride, padding, 1)
    np.testing.assert_allclose(forward(x, kernel), expected, **CLOSE)
    for wrt in ((0, 1), (1,)):
        program = jax.make_jaxpr(gradients(convolve, *wrt))(x, kernel)
        assert "conv_general_dilated" not in str(program)
        # A gradient that nobody asked for takes no product.
        products = [e for e in equations(program.jaxpr) if e.primitive.name == "dot_general"]
        assert len(products) == 1 + len(wrt)
        computed, exact = gradients(convolve, *wrt), gradients(by_patches, *wrt)
        for value, same in zip(computed(x, kernel), exact(x, kernel), strict=True):
            np.testing.assert_array_equal(value, same)


def test_vmapped_clients_convolve_by_patches_and_so_do_rounded_products():
    x, kernels = normal(2, 2, 6, 6, 20), normal(2, 3, 3, 20, 20, seed=1)
    vmapped = jax.vmap(conv2d)
    assert "conv_general_dilated" not in str(jax.make_jaxpr(vmapped)(x, kernels))
    for image, kernel, out in zip(x, kernels, vmapped(x, kernels)):
        np.testing.assert_allclose(out, ref.conv2d(image, kernel, 1, 0, 1), **CLOSE)
    shared = jax.vmap(conv2d, (0, None))(x, kernels[0])
    np.testing.assert_allclose(shared[1], ref.conv2d(x[1], kernels[0], 1, 0, 1), **CLOSE)
    with jax.default_matmul_precision("bfloat16"):
        rounded = jax.make_jaxpr(lambda x, kernel: conv2d(x, kernel))(x[0], kernels[0])
    assert "conv_general_dilated" not in str(rounded)
    half = conv2d(x[0].astype(np.float16), kernels[0])  # of two dtypes, as a product takes them
    assert half.dtype == np.float32


def test_many_images_are_convolved_natively_a_few_at_a_time(monkeypatch):
    x, kernel = normal(6, 8, 8, 4), normal(3, 3, 4, 20, seed=1)
    whole = conv2d(x, kernel)
    monkeypatch.setattr(conv, "images_at_once", lambda batch, size: 2)
    program = jax.make_jaxpr(lambda x, kernel: conv2d(x, kernel))(x, kernel)
    assert {"scan", "conv_general_dilated"} <= {e.primitive.name for e in equations(program.jaxpr)}
    np.testing.assert_allclose(conv2d(x, kernel), whole, **CLOSE)


def test_images_smaller_than_the_kernel_stay_patches():
    # Factors of up to 80 on a CPU: XLA has no fast path for them.
    assert not conv.native_pays((3, 3, 64, 64), smallest=2)
    assert conv.native_pays((3, 3, 64, 64), smallest=3)


def test_kernel_entries_that_only_meet_padding_are_left_out():
    convolve = convolution(CASES["one pixel image"], "patches")
    program = jax.make_jaxpr(convolve)(normal(2, 1, 1, 3), normal(3, 3, 3, 4))
    [product] = [e for e in equations(program.jaxpr) if e.primitive.name == "dot_general"]
    assert [v.aval.shape for v in product.invars] == [(2, 3), (3, 4)]


def test_depthwise_gradient_adds_no_padded_slices():
    padded = [e for e in program("patches", CASES["depthwise"]) if e.primitive.name == "pad"]
    assert len(padded) == 3  # the input, the upstream gradient, and the input's gradient cut back


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lowering": "fast"}, "lowering is 'fast'; it must be patches or native"),
        ({"groups": 2}, "groups is 2 for 4 -> 4 channels; it must be 1, or equal to both"),
    ],
    ids=["lowering", "groups"],
)
def test_bad_arguments_are_named(arguments, message):
    unchecked = inspect.unwrap(conv2d)  # the suite checks types, and would refuse it first
    with pytest.raises(ValueError, match=message):
        unchecked(normal(1, 4, 4, 4), normal(1, 1, 4 // arguments.get("groups", 1), 4), **arguments)


def test_half_precision_stays_half():
    x, kernel = jnp.ones((1, 3, 3, 2), jnp.bfloat16), jnp.ones((2, 2, 2, 1), jnp.bfloat16)
    assert {conv2d(x, kernel, lowering=how).dtype for how in ("patches", "native")} == {
        jnp.dtype("bfloat16")
    }


@pytest.mark.parametrize(("case", "at_once"), [("strided, padded", 1), ("valid", 3)])
def test_a_few_images_at_a_time_are_the_whole_batch(monkeypatch, case, at_once):
    case = CASES[case]
    arguments = [a[0] for a in drawn(case, batch=6)]
    monkeypatch.setattr(patches, "images_at_once", lambda batch, size: at_once)
    few = jax.jit(pulled_back(convolution(case)))
    assert "scan" in str(jax.make_jaxpr(few)(*arguments))
    assert_close(few(*arguments), by_reference(case, *arguments))


@pytest.mark.parametrize(
    "case, columns", [("valid", 1), ("valid", 2), ("padded", 5), ("strided, padded", 3)]
)
def test_several_outputs_of_a_row_at_once_are_those_alone(monkeypatch, case, columns):
    case = CASES[case]
    arguments = [a[0] for a in drawn(case)]
    out_width = arguments[2].shape[2]
    monkeypatch.setattr(patches, "columns_at_once", lambda *sizes: columns)
    assert out_width % columns == 0
    assert_close(
        jax.jit(pulled_back(convolution(case)))(*arguments), by_reference(case, *arguments)
    )


TRANSPOSED = {  # image, kernel, stride, padding
    "a pixel becomes a map": ((1, 1), (4, 4), 1, 0),
    "doubled": ((3, 2), (4, 4), 2, 1),
    "odd": ((2, 3), (3, 2), 3, 0),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_equals_the_loop_and_xla(case):
    """Values one pixel at a time; gradients those of XLA's convolution of the image with holes."""
    image, size, stride, padding = TRANSPOSED[case]
    x, kernel = normal(2, *image, 3), normal(*size, 3, 2, seed=1)
    want = ref.conv_transpose2d(np.float64(x), np.float64(kernel), stride, padding)
    upstream = normal(*want.shape, seed=2)

    def native(x, kernel):
        edges = [(n - 1 - padding, n - 1 - padding) for n in size]
        options = {"lhs_dilation": (stride, stride), "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return lax.conv_general_dilated(x, kernel[::-1, ::-1], (1, 1), edges, **options)

    def ours(x, kernel):
        return conv_transpose2d(x, kernel, stride, padding)

    with jax.default_matmul_precision("bfloat16"):
        rounded = jax.jit(ours)(x, kernel)
    np.testing.assert_allclose(rounded, want, rtol=0.02, atol=0.05)
    value, *gradients = jax.jit(pulled_back(ours))(x, kernel, upstream)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
    for gradient, other in zip(gradients, jax.jit(pulled_back(native))(x, kernel, upstream)[1:]):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-4)
