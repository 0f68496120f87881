"""The network of four convolutional blocks of the few-shot papers, as a function of one vector."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from tasks.models.batch_norm import batch_norm
from tasks.models.convolution import convolution

BLOCKS = 4
EPS = 1e-5  # torch's default for batch normalisation


@dataclass(frozen=True)
class Conv4:
    """Each block is a 3x3 convolution, batch normalisation, ReLU and 2x2 max pooling (Vinyals et
    al., NeurIPS 2016). Without `pooled` the convolutions have stride 2 in place of the pooling, and
    the last one's output is averaged over the image, as learn2learn does it for Omniglot.

    The convolutions have no bias, because the normalisation would subtract it. The first parameters
    are drawn as learn2learn draws them: Glorot's uniform weights, scales uniform on [0, 1], and
    shifts 0. channels, side: of the square images, the latter in pixels.
    """

    channels: int
    side: int
    filters: int
    pooled: bool = True

    @property
    def sizes(self) -> list[int]:
        """The lengths of the vector's parts: weights, scales and shifts of each block."""
        inputs = [self.channels, *[self.filters] * (BLOCKS - 1)]
        return [n for c in inputs for n in (9 * c * self.filters, self.filters, self.filters)]

    @property
    def width(self) -> int:
        """How many features an image has."""
        return self.filters * (self.side // 2**BLOCKS) ** 2 if self.pooled else self.filters

    @property
    def stride(self) -> int:
        """Give the stride of every convolution."""
        return 1 if self.pooled else 2

    def init(self, rng: Generator) -> Tensor:
        """A random vector, in double precision."""
        parts = []
        for weights, filters, _ in zip(*[iter(self.sizes)] * 3):
            bound = math.sqrt(6 / (weights / filters + 9 * filters))
            parts.append(bound * (2 * torch.rand(weights, generator=rng, dtype=torch.float64) - 1))
            parts.append(torch.rand(filters, generator=rng, dtype=torch.float64))
            parts.append(torch.zeros(filters, dtype=torch.float64))
        return torch.cat(parts)

    def features(self, theta: Tensor, images: Tensor, known: int | None = None) -> Tensor:
        """The features [n, width] of images [n, channels, side, side], for the parameters theta.

        The normalisation's mean and variance are those of the first `known` images; None: of all.
        """

        def layer(z: Tensor, weights: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
            kernel = weights.view(self.filters, -1, 3, 3)
            z = F.conv2d(z, kernel, padding=1, stride=self.stride)
            return normalise(z, scale, shift, known)

        return self._features(theta.split(self.sizes), images, layer)

    def own_features(self, thetas: Tensor, images: Tensor, known: int | None = None) -> Tensor:
        """The features [m, n, width] of m networks of their own parameters thetas [m, size], each
        of its own images [m, n, channels, side, side]; `known` as for `features`.

        The networks go through each layer together, as groups of channels.
        """
        m = len(thetas)

        def layer(z: Tensor, weights: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
            kernels = weights.reshape(m * self.filters, -1, 3, 3)
            scale, shift = scale.flatten(), shift.flatten()
            z = convolution(z, kernels, stride=self.stride, groups=m)
            if known is None:
                return batch_norm(z, scale, shift)
            return normalise(z, scale, shift, known)

        z = images.transpose(0, 1).flatten(1, 2)
        z = self._features(thetas.split(self.sizes, 1), z, layer)
        return z.view(len(z), m, self.width).transpose(0, 1)

    def _features(self, parts: Sequence[Tensor], z: Tensor, layer: Callable[..., Tensor]) -> Tensor:
        """layer: a convolution and its normalisation, of images, weights, scales and shifts."""
        for weights, scale, shift in zip(*[iter(parts)] * 3):
            z = F.relu(layer(z, weights, scale, shift))
            if self.pooled:
                z = F.max_pool2d(z, 2)
        return z.flatten(1) if self.pooled else z.mean((2, 3))


def normalise(z: Tensor, scale: Tensor, shift: Tensor, known: int | None) -> Tensor:
    """Batch normalisation of z [n, c, h, w] by the mean and variance of its first `known` images;
    None: of all."""
    if known is None:
        return torch.native_batch_norm(z, scale, shift, None, None, True, 0.0, EPS)[0]
    variance, mean = torch.var_mean(z[:known], (0, 2, 3), correction=0)
    factor = scale * (variance + EPS).rsqrt()
    return z * factor[:, None, None] + (shift - mean * factor)[:, None, None]
