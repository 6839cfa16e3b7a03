"""Every module of kernels that a CPU has."""

import pytest

from gcn_lpa.engine import cpu_kernels
from gcn_lpa.engine.operations import use_kernels
from tests.helpers import reference_kernels


@pytest.fixture(params=[reference_kernels, cpu_kernels], ids=["reference", "cpu"])
def backend(request):
    with use_kernels(request.param):
        yield request.param
