"""D(x) = ½ Σ ã_ij ‖x_i - x_j‖², Section 2.5: how far apart neighbours are, its Hessian, and the x on which D grows most."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from gcn_lpa.engine.sparse import SparseMatrix

SMALL = 500  # nodes up to which a dense eigenvalue problem takes no time


def energy(weights: SparseMatrix, x: Tensor) -> Tensor:
    """½ Σ w_ij ‖x_i - x_j‖² over the entries (i, j): with w = D⁻¹A the D(x) of Theorem 4."""
    pattern, squares = weights.pattern, (x * x).sum(dim=1)
    distances = pattern.spread_rows(squares) + pattern.spread_cols(squares) - 2 * pattern.edge_dot(x, x)
    return 0.5 * (weights.values * distances).sum()


def hessian(walk: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """∇²D for one feature: D(x) = ½ xᵀ∇²D x."""
    both = walk + walk.T
    return scipy.sparse.diags_array(both.sum(axis=1)) - both


def top_eigenvalue(matrix: scipy.sparse.csr_array) -> float:
    """The largest eigenvalue of a symmetric matrix."""
    if matrix.shape[0] <= SMALL:
        return float(np.linalg.eigvalsh(matrix.toarray())[-1])
    first = np.random.default_rng(0).normal(size=matrix.shape[0])  # given, so that the same input gives the same bits
    return float(scipy.sparse.linalg.eigsh(matrix, k=1, which="LA", v0=first, return_eigenvectors=False)[0])


def worst_features(transition: SparseMatrix) -> Tensor:
    """The x, one number per node, for which D(h) / D(x) is largest: a generalised eigenvector, [n, 1]."""
    walk = transition.to_scipy()
    curvature = hessian(walk)
    # D is 0 where x is the same on a whole component, so a little is added to what is inverted
    below = (curvature + 1e-6 * scipy.sparse.eye_array(len(walk.indptr) - 1)).tocsc()
    inverse = scipy.sparse.linalg.LinearOperator(below.shape, matvec=scipy.sparse.linalg.splu(below).solve, dtype=float)
    first = np.random.default_rng(0).normal(size=below.shape[0])  # given, so that the same input gives the same bits
    _, x = scipy.sparse.linalg.eigsh(walk.T @ curvature @ walk, k=1, M=below, Minv=inverse, which="LA", v0=first)
    return torch.from_numpy(x)
