"""A progress bar for `on_epoch`: one line that is written over, in a terminal and in a notebook."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from gcn_lpa.epochs import Epoch

WIDTH = 20  # of the bar, in characters
SECONDS = 0.1  # between two writes


class ProgressBar:
    """Says how far a training is: `learn(graph, train, val, on_epoch=ProgressBar(200))`. Use it in a `with` to end its line."""

    def __init__(self, num_epochs: int, stream: TextIO | None = None) -> None:
        self.num_epochs, self.stream = num_epochs, stream or sys.stderr
        self.line, self.written = "", 0.0

    def __call__(self, epoch: Epoch) -> None:
        done = min(WIDTH, WIDTH * epoch.epoch // self.num_epochs)
        loss = "" if epoch.loss is None else f", loss {epoch.loss:.3g}"
        accuracy = "" if epoch.val_accuracy is None else f", validation {100 * epoch.val_accuracy:.1f} %"
        line = f"{'█' * done}{'░' * (WIDTH - done)} epoch {epoch.epoch} of {self.num_epochs}{loss}{accuracy}"
        self.line = line.ljust(len(self.line))  # over what was longer
        if time.monotonic() - self.written >= SECONDS or epoch.epoch >= self.num_epochs:
            self._write()

    def _write(self) -> None:
        print(f"\r{self.line}", end="", file=self.stream, flush=True)
        self.written = time.monotonic()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.line:  # early stopping ends before the last epoch
            self._write()
            print(file=self.stream)
