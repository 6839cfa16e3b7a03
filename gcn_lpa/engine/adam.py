"""Adam (Kingma & Ba 2015) on torch's fused kernel, with the bits of torch.optim.Adam(fused=True, capturable=True).

The first torch.optim.Adam of a process imports torch's compiler, which takes longer than training on a small graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Groups of parameters, each with its weight decay: λ stands for ½ λ ‖·‖² in the loss.

    All state is tensors on the device of the parameters, so that a step can be part of a CUDA graph. The parameters of
    one group share device and dtype.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[nn.Parameter], float]], *, lr: float | Sequence[float]) -> None:
        self.rates = [lr] * len(groups) if isinstance(lr, float) else list(lr)  # of each group
        self.groups = [([_Moments(parameter) for parameter in group], decay) for group, decay in groups]

    def parameters(self) -> list[nn.Parameter]:
        return [moments.parameter for group, _ in self.groups for moments in group]

    def zero_grad(self) -> None:
        for group, _ in self.groups:
            for moments in group:
                moments.parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for (group, decay), rate in zip(self.groups, self.rates, strict=True):
            found = [(moments, grad) for moments in group if (grad := moments.parameter.grad) is not None]
            if not found:
                continue
            moving, grads = zip(*found, strict=True)
            steps = [moments.step for moments in moving]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                [moments.parameter for moments in moving],
                grads,
                [moments.exp_avg for moments in moving],
                [moments.exp_avg_sq for moments in moving],
                [],
                steps,
                lr=rate,
                beta1=BETA1,
                beta2=BETA2,
                weight_decay=decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def state(self) -> dict[str, Tensor]:
        """What a step changes beside the parameters, by name; the tensors themselves, to be saved or copied into."""
        everything = [moments for group, _ in self.groups for moments in group]
        return {
            f"adam.{i}.{name}": getattr(moments, name)
            for i, moments in enumerate(everything)
            for name in ("step", "exp_avg", "exp_avg_sq")
        }


class _Moments:
    """A parameter, the number of its steps, and the running means of its gradient and of the gradient's square."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.step = torch.zeros((), device=parameter.device)
        self.exp_avg = torch.zeros_like(parameter, requires_grad=False)
        self.exp_avg_sq = torch.zeros_like(parameter, requires_grad=False)
