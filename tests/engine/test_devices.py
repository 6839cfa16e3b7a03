"""How many threads a block gets, and what is left when blocks overlap."""

import threading

import pytest
import torch

from gcn_lpa.engine.devices import SMALL, choose_device, num_cpu_threads, num_threads


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def both():
    """The threads of torch and those of our kernels, as this thread sees them."""
    return torch.get_num_threads(), num_cpu_threads()


def seen_by_a_new_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(both()))
    thread.start()
    thread.join()
    return seen[0]


class Visitor:
    """A thread that enters a block when told to, and leaves it when told to."""

    def __init__(self, threads, **options):
        self.threads, self.options = threads, options
        self.may_leave, self.has_entered = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.visit)

    def visit(self):
        with num_threads(self.threads, **self.options):
            self.has_entered.set()
            assert self.may_leave.wait(30)
            self.inside = both()
        self.after = both()

    def enter(self):
        self.thread.start()
        assert self.has_entered.wait(30)

    def leave(self):
        self.may_leave.set()
        self.thread.join()


def test_a_small_layer_leaves_torch_one_thread_and_the_kernels_all(three_threads):
    with num_threads(None, layer=SMALL - 1):
        assert both() == (1, 3)
    with num_threads(None, layer=SMALL):
        assert both() == (3, 3)
    with num_threads(2):
        assert both() == (2, 2)
        with num_threads(None, layer=1):
            assert both() == (1, 2)
        assert both() == (2, 2)
    assert both() == (3, 3)


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_blocks_that_overlap_in_two_threads_leave_the_number_as_it_was(three_threads, first_leaves_first):
    first, second = Visitor(None, layer=1), Visitor(2)
    for visitor in (first, second):
        visitor.enter()
    assert both() == (3, 3)  # this thread is in no block
    for visitor in (first, second) if first_leaves_first else (second, first):
        visitor.leave()
    assert (first.inside, second.inside) == ((1, 3), (2, 2))
    assert (first.after, second.after) == ((3, 3), (3, 3))
    assert both() == seen_by_a_new_thread() == (3, 3)


def test_a_block_of_this_thread_that_ends_inside_another_is_undone_at_once(three_threads):
    other = Visitor(None, layer=1)
    with num_threads(2):
        other.enter()
        assert both() == (2, 2)
    assert both() == (3, 3)
    other.leave()
    assert (other.inside, other.after) == ((1, 3), (3, 3))
    assert seen_by_a_new_thread() == (3, 3)


def test_threads_hold_inside_the_block_only():
    before = torch.get_num_threads()
    with num_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="threads = 0"), num_threads(0):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed():
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="no GPU here; use 'auto' or 'cpu'"):
        choose_device("cuda")


@pytest.mark.parametrize("device", ["tpu", "foo", "", "meta", "cuda:x", None])
def test_an_unknown_device_is_named_with_the_choices(device):
    with pytest.raises(ValueError, match=f"unknown device {device!r}; it is one of auto, cpu, cuda"):
        choose_device(device)
