"""The interface of every model, and the two ways in which models learn.

A model gives `model(graph)`, logits or log-probabilities, [n, c], for a graph prepared by its recipe. It learns in one of two ways:
`train.fit` follows the gradient of `loss(graph, nodes, key)`, or `fit_at_once(graph, nodes)` learns without steps. Both read the
labels of `nodes` and no others. All that is learned is in parameters and buffers, so that a file of tensors can hold it; models
that need labels to predict read those of the graph they are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor, nn

if TYPE_CHECKING:
    from gcn_lpa.engine.sparse import Key, SparseMatrix
    from gcn_lpa.graph import Graph
    from gcn_lpa.losses import Loss


class Predictor(Protocol):
    """A trained model."""

    def __call__(self, graph: Graph) -> Tensor: ...
    def outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        """The rows of these nodes alone, [m, c]."""

    def transition(self, graph: Graph) -> SparseMatrix:
        """D*⁻¹A*, the matrix that labels walk: with learned edges, or else the given ones."""

    def smoothing(self, graph: Graph) -> SparseMatrix:
        """The matrix that features walk."""

    def edge_parameters(self) -> list[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...


class Model(Predictor, Protocol):
    """A model that is trained by steps."""

    capturable: bool  # whether a step can be a CUDA graph: it must never wait for the GPU
    stackable: bool  # whether torch.func can map its loss over a stack of models

    def begin(self, graph: Graph) -> None:
        """Learn what is learned of columns alone, without labels, before the first step."""

    def loss(self, graph: Graph, nodes: Tensor, key: Key) -> Loss: ...
    def weight_parameters(self) -> list[nn.Parameter]: ...


class FittedAtOnce(Predictor, Protocol):
    """A model without gradient steps."""

    depends_on_seed: bool

    def fit_at_once(self, graph: Graph, nodes: Tensor) -> None:
        """Learn from the labels of `nodes`, positions."""

    def limit(self, stages: int) -> None:
        """Learn in so many stages, or, after learning, keep so many of the first ones."""

    def stages(self, graph: Graph, nodes: Tensor) -> Iterator[Tensor]:
        """The outputs for `nodes` after each stage of learning, [m, c] each."""


class OnGivenEdges(nn.Module):
    """A model that walks the edges as they are given."""

    def transition(self, graph: Graph) -> SparseMatrix:
        return graph.adjacency.row_normalized()

    def smoothing(self, graph: Graph) -> SparseMatrix:
        return graph.adjacency.symmetric_normalized()

    def edge_parameters(self) -> list[nn.Parameter]:
        return []

    def outputs(self, graph: Graph, nodes: Tensor) -> Tensor:
        return cast(Tensor, self(graph)).index_select(0, nodes)

    def begin(self, graph: Graph) -> None: ...


class AtOnce(OnGivenEdges):
    """A `FittedAtOnce` that learns in one stage."""

    depends_on_seed = True

    def limit(self, stages: int) -> None: ...

    def stages(self, graph: Graph, nodes: Tensor) -> Iterator[Tensor]:
        yield self.outputs(graph, nodes)
