"""Our Adam beside torch.optim.Adam: the same bits, the same state."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from gcn_lpa.engine.adam import Adam

SHAPES = [(5, 3), (3,), (257,)]  # the first two in one group, the third in another
DECAYS = (0.01, 0.0)


def groups_of(parameters):
    return [(parameters[:2], DECAYS[0], 0.03), (parameters[2:], DECAYS[1], 0.03)]


def drawn(dtype, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype).to(device)) for shape in SHAPES]


def loss(parameters, k):
    """A cost whose gradients differ from step to step."""
    return sum((parameter * (k + 1) - 1).pow(2).sum() + parameter.sin().sum() for parameter in parameters)


def torchs_adam(parameters):
    groups = [{"params": group, "weight_decay": decay} for group, decay, _ in groups_of(parameters)]
    return torch.optim.Adam(groups, lr=0.03, fused=True, capturable=parameters[0].is_cuda)


NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_twenty_steps_are_those_of_torch_bit_for_bit(dtype, device):
    ours, theirs = drawn(dtype, device), drawn(dtype, device)
    adam, other = Adam(groups_of(ours)), torchs_adam(theirs)
    for k in range(20):
        for parameters, optimizer in ((ours, adam), (theirs, other)):
            optimizer.zero_grad()
            loss(parameters, k).backward()
            optimizer.step()
        for one, two in zip(ours, theirs, strict=True):
            assert torch.equal(one, two)
    expected = {f"adam.{i}.{name}": tensor for i, p in enumerate(theirs) for name, tensor in other.state[p].items()}
    found = adam.state()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
        assert (found[name].dtype, found[name].device) == (tensor.dtype, tensor.device)
        assert not found[name].requires_grad


def test_a_parameter_without_a_gradient_stays_and_counts_no_step():
    parameters = drawn(torch.float32)
    before = [parameter.detach().clone() for parameter in parameters]
    adam = Adam([*groups_of(parameters), ([], 0.5, 0.03)])
    (parameters[0] ** 2).sum().backward()
    adam.step()
    assert [torch.equal(*pair) for pair in zip(parameters, before, strict=True)] == [False, True, True]
    assert [float(adam.state()[f"adam.{i}.step"]) for i in range(3)] == [1, 0, 0]
    adam.zero_grad()
    assert [parameter.grad for parameter in parameters] == [None, None, None]


def test_state_that_was_copied_goes_on_as_if_nothing_had_happened():
    straight = drawn(torch.float64)
    adam = Adam(groups_of(straight))
    for k in range(6):
        if k == 3:
            resumed = [nn.Parameter(parameter.detach().clone()) for parameter in straight]
            other = Adam(groups_of(resumed))
            for name, tensor in other.state().items():
                tensor.copy_(adam.state()[name])
        for parameters, optimizer in [(straight, adam)] + ([(resumed, other)] if k >= 3 else []):
            optimizer.zero_grad()
            loss(parameters, k).backward()
            optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(straight, resumed, strict=True))


@pytest.mark.long
def test_a_step_leaves_the_compiler_of_torch_alone():
    code = """
import sys, torch
from gcn_lpa.engine.adam import Adam
weight = torch.nn.Parameter(torch.ones(3))
adam = Adam([([weight], 0.0, 0.1)])
weight.sum().backward()
adam.step()
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_each_group_has_its_rate():
    """The first step of Adam moves a parameter by its learning rate, whatever the gradient."""
    one, two = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    adam = Adam([([one], 0.0, 0.5), ([two], 0.0, 0.01)])
    (3 * one + 7 * two).backward()
    adam.step()
    assert (one.item(), two.item()) == pytest.approx((-0.5, -0.01))


def test_with_sparse_gradients_each_part_moves_as_a_parameter_of_its_own():
    """Two parts in turn, and an entry in neither; beside torch's Adam with a parameter for each part."""
    parts = [torch.tensor([0, 3, 4]), torch.tensor([5, 1])]
    start = torch.linspace(-1, 1, 6)
    whole, others = nn.Parameter(start.clone()), [nn.Parameter(start[at]) for at in parts]
    adam = Adam([([whole], 0.1, 0.03)], batches=2)
    theirs = [torch.optim.Adam([one], lr=0.03, weight_decay=0.1, fused=True) for one in others]
    for k in range(5):
        for at, one, optimizer in zip(parts, others, theirs, strict=True):
            adam.zero_grad()
            optimizer.zero_grad()
            loss([torch.gather(whole, 0, at, sparse_grad=True)], k).backward()
            loss([one], k).backward()
            adam.step()
            optimizer.step()
            assert torch.equal(whole.detach()[at], one.detach())
    assert whole[2] == start[2]
    assert adam.state()["adam.0.exp_avg"][2] == 0
