r"""Where distillation has something to win, on a CPU: FedRolex (or :method=fedrolex+dfrd, ...) on 16 pixels a side.

    fedjax-ht run --config=fashion_mnist_distil
    fedjax-ht run --config=fashion_mnist_distil:method=fedrolex+dfrd
    fedjax-ht run --config=fashion_mnist_distil:method=fedrolex+dfrd \
        --config.method.options.images=real

Ten clients, Dirichlet(0.1), 20 steps of batch 64, all as in fashion_mnist_sliced.py next to this file, but for: the
4-conv CNN with a quarter of its channels, of which clients hold half and a quarter in turn; 16 pixels; and the
distilling methods in their released form (variant="released"), but for divergences at temperature 4 that are scaled by
its square. As released, at 10 and unscaled, the server's model hardly follows its teachers, whatever the images.
DENSE's generator is given the label, as in fashion_mnist_sliced.py.

Chosen on 10,000 of the training images, held out, one seed, alpha = 0; the test images were not looked at. Accuracy
of the server's model in % by round (the student's learning rate is 0.01, and 0.1 in the last two rows):

| images | at 10, unscaled | at 4, scaled |
|---|---|---|
| none (FedRolex) | 4: 9.0, 8: 10.5, 12: 19.0, 20: 47.0 | the same |
| real | 4: 16.4, 8: 41.6, 12: 61.3 | 4: 78.1, 8: 80.9, 12: 82.1 |
| untrained | 4: 10.0, 8: 13.4, 12: 32.8 | 4: 26.3, 8: 40.9, 12: 51.6 |
| noise | - | 3: 22.0, 6: 35.1 |
| generator (DFRD) | - | 3: 28.6, 6: 46.7 |
| real, 0.1 | - | 4: 81.0, 8: 82.3, 12: 84.4 |
| untrained, 0.1 | - | 3: 25.5, 6: 33.5 |
| generator (DFRD), 0.1 | - | 3: 39.5, 6: 46.2 |

So the ceiling is far above FedRolex and above any image that no data were seen for. Needs the four files of
Fashion-MNIST (idx, gzipped or not) in `data/`.
"""

from fedjax_ht.configs import fashion_mnist_sliced


def get_config(argument=None):
    config = fashion_mnist_sliced.get_config()
    config.rounds = 20
    config.dataset.image_size = 16
    config.model.group = "conv4_quarter"
    config.model.rates = "1/2,1/4"
    released = {"variant": "released", "temperature": 4.0, "temperature_squared": True}
    return fashion_mnist_sliced.with_argument(config, argument, **released)
