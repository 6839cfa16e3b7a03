"""Where the history of a training can be sent: TensorBoard, MLflow."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

from gcn_lpa.epochs import Epoch


class TensorBoardLogger:
    """An `on_epoch` that writes the history to `folder` for TensorBoard."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError('TensorBoard is not installed: pip install "gcn-lpa[log]"') from error
        self.writer = SummaryWriter(str(folder))

    def __call__(self, epoch: Epoch) -> None:
        for name, value in _measured(epoch).items():
            self.writer.add_scalar(name, value, epoch.epoch)
        self.writer.flush()


class MLflowLogger:
    """An `on_epoch` that gives the history to the active MLflow run."""

    def __init__(self) -> None:
        try:
            self.mlflow = importlib.import_module("mlflow")
        except ImportError as error:
            raise ImportError("MLflow is not installed: pip install mlflow") from error

    def __call__(self, epoch: Epoch) -> None:
        self.mlflow.log_metrics(_measured(epoch), step=epoch.epoch)


def _measured(epoch: Epoch) -> dict[str, float]:
    return {k: v for k, v in dataclasses.asdict(epoch).items() if k != "epoch" and v is not None}
