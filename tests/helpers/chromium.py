"""Debian's Chromium and its driver, where they are installed."""

import os
import shutil

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def check_chromium():
    """Without Chromium these tests are skipped; where `run.py test --slow` asks for every test they fail."""
    if not (CHROMIUM and DRIVER):
        end = pytest.fail if os.environ.get("GCN_LPA_BROWSER") == "required" else pytest.skip
        end("needs chromium and chromium-driver (apt-get install chromium chromium-driver)")
