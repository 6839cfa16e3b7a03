"""The versions and the machine that a result belongs to."""

from __future__ import annotations

import contextlib
import os
import platform
import tomllib
from pathlib import Path
from typing import Any


def environment() -> dict[str, Any]:
    """The versions and the machine, as environment.json of a run and every result of a benchmark keep them."""
    import torch

    return {
        "gcn_lpa": version_of("gcn-lpa"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "numpy", "scipy", "numba")},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda_device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def version_of(package: str) -> str:
    """The version of an installed package; ours may also run from a source tree. "unknown" where nothing says."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    source = Path(__file__).parents[2] / "pyproject.toml"
    if package == "gcn-lpa" and source.is_file():
        project = tomllib.loads(source.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == package:
            return str(project.get("version", "unknown"))
    return "unknown"
