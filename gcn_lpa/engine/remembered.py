"""Results that are kept while what they were computed from stays the same, and where torch.func must not make them."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
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


class Remembered(Generic[P, T]):
    """A function that keeps its last result for as long as it is called with the same arguments, whose tensors nobody wrote to.

    It keeps no graph alive that it was called with, and a copy of it remembers nothing.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self.function = function
        self.last: tuple[list[Tensor], list[Any], T] | None = None

    def __reduce__(self) -> tuple[type[Remembered[P, T]], tuple[Callable[P, T]]]:
        return Remembered, (self.function,)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> T:
        if options:
            raise TypeError("what is remembered is told apart by its arguments, which are given by position")
        if any(isinstance(a, Tensor) and (a.requires_grad or is_wrapped(a)) for a in arguments):
            return self.function(*arguments, **options)  # a result with a gradient serves one backward pass
        state = [_state(argument) for argument in arguments] + [torch.is_inference_mode_enabled()]
        if self.last is None or self.last[1] != state:
            held = [a for a in arguments if isinstance(a, Tensor)]  # so that no id is used again
            with unstacked():
                self.last = held, state, self.function(*arguments, **options)
        return self.last[2]


def _state(argument: Any) -> Any:
    """What changes with an argument: of a dataclass, such as a graph, also with the tensors that are its fields."""
    if isinstance(argument, Tensor):
        return id(argument), version_of(argument)
    if not dataclasses.is_dataclass(argument):
        return argument
    return weakref.ref(argument), [version_of(field) for field in vars(argument).values() if isinstance(field, Tensor)]


def version_of(values: Tensor) -> int:
    """Changes whenever the tensor is written to."""
    return -1 if values.is_inference() else values._version
