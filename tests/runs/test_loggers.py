"""The history, as TensorBoard and MLflow get it."""

import sys
from types import SimpleNamespace

import pytest

from gcn_lpa.epochs import Epoch
from gcn_lpa.runs.loggers import MLflowLogger, TensorBoardLogger

LINES = [Epoch(1, 0.5, 0.25, 0.125, 0.75, 2.0, 1.0), Epoch(2, 0.25, 0.25, 0.0, None, None, 1.0)]


def test_mlflow_gets_what_was_measured(monkeypatch):
    logged = []
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(log_metrics=lambda m, step: logged.append((step, m))))
    log = MLflowLogger()
    for line in LINES:
        log(line)
    assert logged[0] == (
        1,
        {"loss": 0.5, "gcn": 0.25, "lpa": 0.125, "val_accuracy": 0.75, "val_loss": 2.0, "seconds": 1.0},
    )
    assert logged[1] == (2, {"loss": 0.25, "gcn": 0.25, "lpa": 0.0, "seconds": 1.0})


@pytest.mark.parametrize(
    ("module", "make", "line"),
    [
        ("mlflow", MLflowLogger, "pip install mlflow"),
        ("torch.utils.tensorboard", lambda: TensorBoardLogger("x"), r'pip install "gcn-lpa\[log\]"'),
    ],
)
def test_a_missing_logger_is_named_with_its_pip_line(monkeypatch, module, make, line):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=line):
        make()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own imports
def test_tensorboard_reads_back_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLogger(tmp_path)
    for line in LINES:
        log(line)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert [(event.step, event.value) for event in read.Scalars("val_accuracy")] == [(1, 0.75)]
