"""What is done to raw features before a model reads them, and what is learned of them for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

FEATURE_KINDS = ("raw", "row", "l2", "tfidf")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features raw, divided by their row sum, by their length, or as TF-IDF; `idf` is what TF-IDF learned of each column.

    Rows of zeros stay zero and sparse stays sparse. A row sum is one of absolute values. TF-IDF is scikit-learn's:
    x_id (1 + ln((1 + n) / (1 + n_d))), then rows of length 1.
    """

    kind: str
    idf: np.ndarray | None = None  # [d]

    @classmethod
    def learned(cls, kind: str, x: Any) -> Scaling:
        """The scaling of a kind for the columns of x, an array or sparse matrix."""
        if kind not in FEATURE_KINDS:
            raise ValueError(f"unknown features {kind!r}; there are {', '.join(FEATURE_KINDS)}")
        if kind != "tfidf":
            return cls(kind)
        _check_counts(x)
        present = np.asarray((x != 0).sum(axis=0)).ravel()
        return cls(kind, 1 + np.log((1 + x.shape[0]) / (1 + present)))

    def __call__(self, x: Any) -> Any:
        """x scaled, in float64: the square of 1e30 is beyond float32."""
        if self.kind == "raw":
            return x
        x = x.astype(np.float64)
        if self.idf is not None:
            _check_counts(x)
            x = x * self.idf[None, :]
        sizes = abs(x).sum(axis=1) if self.kind == "row" else np.sqrt((x * x).sum(axis=1))
        sizes = np.asarray(sizes).ravel()
        scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        return scipy.sparse.csr_array(x.multiply(scale[:, None])) if scipy.sparse.issparse(x) else x * scale[:, None]


def _check_counts(x: Any) -> None:
    if x.min() < 0:
        raise ValueError("tfidf needs features that are counts, but some are negative")
