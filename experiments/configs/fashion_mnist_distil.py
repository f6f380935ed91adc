r"""FedRolex (or :method=fedrolex+dfrd, ...) on 16 pixels a side: distillation on a CPU.

    fedjax-ht run --config=fashion_mnist_distil
    fedjax-ht run --config=fashion_mnist_distil:method=fedrolex+dfrd
    fedjax-ht run --config=fashion_mnist_distil:method=fedrolex+dfrd \
        --config.method.options.images=real

Ten clients, Dirichlet(0.1), 20 steps of batch 64, all as in fashion_mnist_sliced.py next to this
file, except: the 4-conv CNN has a quarter of its channels, of which clients have half and a quarter
in turn; images have 16 pixels a side; and the distilling methods have their released form
(variant="released"), but with divergences at temperature 4 that are scaled by its square. As
released, at 10 and unscaled, the server's model hardly follows its teachers, whatever the images.
DENSE's generator is given the label, as in fashion_mnist_sliced.py.

Chosen on 10,000 held-out training images, one seed, alpha = 0, without the test images. Results and
discussion: experiments/results/dfrd.md. Real images, which no server has, bring the server's model
far above FedRolex alone and above any images made without data.
Needs the four files of Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from experiments.configs import fashion_mnist_sliced


def get_config(argument=None):
    config = fashion_mnist_sliced.get_config()
    config.rounds = 20
    config.dataset.image_size = 16
    config.model.group = "conv4_quarter"
    config.model.rates = "1/2,1/4"
    released = {"variant": "released", "temperature": 4.0, "temperature_squared": True}
    return fashion_mnist_sliced.with_argument(config, argument, **released)
