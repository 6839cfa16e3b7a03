"""Every module of kernels that a CPU has."""

import pytest

from gcn_lpa.engine import cpu_kernels
from tests.helpers import reference_kernels
from tests.helpers.reference_kernels import use_kernels


@pytest.fixture(params=[reference_kernels, cpu_kernels], ids=["reference", "cpu"])
def backend(request):
    with use_kernels(request.param):
        yield request.param
