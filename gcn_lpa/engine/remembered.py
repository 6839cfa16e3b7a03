"""Results that are kept while what they were computed from stays the same, and where torch.func must not make them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def is_stacked() -> bool:
    """Whether this runs inside torch.func, where a tensor may stand for those of many models."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_wrapped(tensor: Tensor) -> bool:
    """Whether torch.func made this tensor: it may stand for those of many models, and is gone when torch.func ends."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


@contextlib.contextmanager
def unstacked() -> Iterator[None]:
    """Leave torch.func for the block, or the function it decorates: what is made of constants there can be kept."""
    if not is_stacked():
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


class Remembered(Generic[T]):
    """A function of tensors that keeps its last result for as long as it is called with the same, unchanged tensors."""

    def __init__(self, function: Callable[..., T]) -> None:
        self.function = function
        self.last: tuple[tuple[Any, ...], list[Any], T] | None = None

    def __call__(self, *arguments: Any) -> T:
        if any(isinstance(a, Tensor) and (a.requires_grad or is_wrapped(a)) for a in arguments):
            return self.function(*arguments)  # a result with a gradient serves one backward pass
        state = [_state(argument) for argument in arguments] + [torch.is_inference_mode_enabled()]
        if self.last is None or self.last[1] != state:
            with unstacked():  # the tensors are held, so that no id is used again
                self.last = arguments, state, self.function(*arguments)
        return self.last[2]


def _state(argument: Any) -> Any:
    return (id(argument), version_of(argument)) if isinstance(argument, Tensor) else argument


def version_of(values: Tensor) -> int:
    """Changes whenever the tensor is written to."""
    return -1 if values.is_inference() else values._version
