"""A step of training recorded as one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


class Capturable(Protocol):
    """A step that never waits for the GPU, with all that it changes."""

    def __call__(self) -> Tensor: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: Mapping[str, Tensor]) -> None: ...


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
