"""Adam (Kingma & Ba 2015) on torch's fused kernel, with the bits of torch.optim.Adam(fused=True, capturable=True).

The first torch.optim.Adam of a process imports torch's compiler, which takes longer than training on a small graph.

`CapturedStep` records a step of training as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Groups of parameters, each with its weight decay and its learning rate; decay λ stands for ½ λ ‖·‖² in the loss.

    All state is tensors on the device of the parameters, so that a step can be part of a CUDA graph. The parameters of
    one group share device and dtype.

    Where a gradient is sparse, only the numbers that it names move and change their means, as if they were a separate parameter.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[nn.Parameter], float, float]], *, batches: int = 1) -> None:
        self.batches = batches  # steps in which each number of a parameter with sparse gradients moves once
        self.groups = [([_Moments.of(parameter) for parameter in group], decay, rate) for group, decay, rate in groups]

    def parameters(self) -> list[nn.Parameter]:
        return [moments.parameter for group, *_ in self.groups for moments in group]

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for group, decay, rate in self.groups:
            moving = [(moments, moments.parameter.grad) for moments in group if moments.parameter.grad is not None]
            if not moving:
                continue
            torch._foreach_add_([moments.step for moments, _ in moving], 1)
            if whole := [(moments, grad) for moments, grad in moving if not grad.is_sparse]:
                _move([moments for moments, _ in whole], [grad for _, grad in whole], rate, decay)
            for moments, grad in moving:
                if grad.is_sparse:
                    self._move_part(moments, grad.coalesce(), rate, decay)

    def _move_part(self, moments: _Moments, grad: Tensor, rate: float, decay: float) -> None:
        """Move the numbers that have a gradient."""
        at = grad.indices()[0]
        times = torch.div(moments.step - 1, self.batches, rounding_mode="floor") + 1  # that these numbers have moved
        parameter, mean, square = (tensor.index_select(0, at) for tensor in moments[:3])
        _move([_Moments(parameter, mean, square, times)], [grad.values()], rate, decay)
        for tensor, moved in zip(moments[:3], (parameter, mean, square), strict=True):
            tensor.index_copy_(0, at, moved)

    def state(self) -> dict[str, Tensor]:
        """What a step changes beside the parameters, by name; the tensors themselves, to be saved or copied into."""
        everything = [moments for group, *_ in self.groups for moments in group]
        return {
            f"adam.{i}.{name}": getattr(moments, name)
            for i, moments in enumerate(everything)
            for name in ("step", "exp_avg", "exp_avg_sq")
        }


class _Moments(NamedTuple):
    """A parameter, the running means of its gradient and of the gradient's square, and the number of its steps."""

    parameter: Any
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor

    @classmethod
    def of(cls, parameter: nn.Parameter) -> _Moments:
        mean, square = (torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
        return cls(parameter, mean, square, torch.zeros((), device=parameter.device))


def _move(moments: Sequence[_Moments], grads: Sequence[Tensor], rate: float, decay: float) -> None:
    """A step of torch's fused kernel."""
    parameters, means, squares, steps = (list(each) for each in zip(*moments, strict=True))
    options: Any = {"beta1": BETA1, "beta2": BETA2, "eps": EPSILON, "amsgrad": False, "maximize": False}
    torch._fused_adam_(parameters, list(grads), means, squares, [], steps, lr=rate, weight_decay=decay, **options)


class Capturable(Protocol):
    """A step that can be recorded, as it never waits for the GPU."""

    def __call__(self) -> Tensor: ...
    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name; the tensors themselves."""

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


class CapturedStep:
    """A step recorded once as a CUDA graph and replayed: small graphs spend their time launching kernels.

    The warm-up, in which kernels are loaded, is undone: the first replay is the first step.
    """

    def __init__(self, step: Capturable) -> None:
        before = {name: tensor.clone() for name, tensor in step.state().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        step.restore(before)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.report = step()

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.report
