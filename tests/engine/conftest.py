"""Every backend that a CPU has."""

import pytest

from gcn_lpa.engine.operations import use_backend


@pytest.fixture(params=("reference", "cpu"))
def backend(request):
    with use_backend(request.param):
        yield request.param
