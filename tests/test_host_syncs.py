"""Where the host waits for the device, by line and by stage; what each stage asks of the device."""

from functools import partial

import pytest
import torch

from tclab.timing import Ledger, syncs
from tclab.timing._host_syncs import Wait, _waits


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.any()), "_local_scalar_dense"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.unique(), "_unique2"),
        (lambda x: torch.repeat_interleave(x, torch.ones(4, dtype=torch.int64)), "repeat_interleave"),
        (lambda x: x.tolist(), "tolist"),
        (repr, "__repr__"),
        (lambda x: x.cpu(), "cpu"),
    ],
)
def test_waits_are_found_with_their_line_and_predicted_on_a_cpu(call, operation):
    x = torch.arange(4.0)
    with syncs() as found:
        call(x)
    assert [wait.operation for wait in found.waits] == [operation]
    ((place, times, seconds),) = found.ranked()
    assert "test_host_syncs.py" in place
    assert (times, seconds, found.cuda) == (1, None, False)
    assert "1 wait predicted" in str(found)
    assert "A forecast" in str(found)


SQUARE = torch.eye(3) + 0.1
# an entry comes twice
TWICE = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.ones(3), (3, 3), check_invariants=False)
ONCE = TWICE.coalesce()
LINALG = [
    "cholesky", "cond", "eig", "eigh", "eigvals", "eigvalsh", "inv", "ldl_factor", "lu_factor", "matrix_rank", "pinv",
    "svd", "svdvals",
]  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        *(pytest.param(partial(getattr(torch.linalg, name), SQUARE), id=name) for name in LINALG),
        lambda: torch.linalg.solve(SQUARE, SQUARE), lambda: torch.linalg.inv_ex(SQUARE, check_errors=True),
        lambda: torch.argwhere(SQUARE), lambda: torch.normal(torch.zeros(3), torch.ones(3)),
        lambda: torch.normal(0.0, torch.ones(3)), lambda: torch.repeat_interleave(torch.tensor([1, 2])),
        lambda: SQUARE[[0, 1]], lambda: SQUARE[:, [0, 1]], lambda: SQUARE.clone().__setitem__([0], 1.0),
        lambda: torch.where(SQUARE > 0), lambda: torch.histc(SQUARE), lambda: torch.allclose(SQUARE, SQUARE),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1)), lambda: TWICE.coalesce(),
        SQUARE.to_sparse, SQUARE.to_sparse_csr, TWICE.to_sparse_csr, lambda: torch.sparse.mm(TWICE, SQUARE),
        lambda: torch.sparse.mm(ONCE, ONCE), lambda: torch.sparse.sum(TWICE, 0), lambda: torch.sparse.softmax(TWICE, 1),
        lambda: ONCE * ONCE, lambda: torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1)),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_torchs_documentation_says_waits_and_what_sparse_tensors_need_to_know_is_foreseen(call):
    with syncs() as found:
        call()
    assert found.count == 1


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_makes_no_one_wait_is_not_counted():
    rows = torch.tensor([0, 1, 1, 1]), torch.tensor([2]), torch.ones(1)
    x, counts = torch.arange(4.0, requires_grad=True), torch.ones(4, dtype=torch.int64)
    with syncs() as found:
        y = torch.repeat_interleave(x * 2, counts, output_size=4)
        y[torch.tensor([0, 1])].sum().backward()
        torch.zeros(4)[torch.tensor([True, False, True, False])] = 1.0  # a masked fill
        # tensors that are coalesced or have a size
        torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (3, 3))
        torch.sparse_csr_tensor(*rows, (3, 3))
        torch.sparse.mm(ONCE, SQUARE)
        ONCE.coalesce().to_sparse_csr()
        torch.sparse.sum(ONCE, 0)
        torch.linalg.inv_ex(SQUARE)
        torch.normal(torch.zeros(3), 1.0)
        torch.histc(SQUARE, 4, -1, 1)
        (SQUARE[0], SQUARE[0:1], SQUARE[..., 0], SQUARE * SQUARE, ONCE * 2, SQUARE.masked_fill(SQUARE > 0, 1.0))
    assert found.count == 0


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "waits"),
    [
        ("copy_", ("cpu", "cuda"), {}, True), ("copy_", ("cuda", "cpu"), {}, True),
        ("copy_", ("cuda", "cuda"), {}, None),
        ("copy_", ("cuda", "cpu", True), {}, None), ("copy_", ("cuda", "cpu"), {"non_blocking": True}, None),
        ("_to_copy", ("cuda",), {"device": "cpu"}, True), ("_to_copy", ("cpu",), {"device": "cuda"}, True),
        ("_to_copy", ("cpu",), {"device": "cuda", "non_blocking": True}, None), ("_to_copy", ("cuda",), {}, None),
        ("_to_copy", ("cpu",), {"dtype": torch.float16}, None), ("nonzero", ("cuda",), {}, True),
        ("nonzero", ("cpu",), {}, False),
    ],
)  # fmt: skip
def test_beside_a_gpu_copies_wait_in_both_directions_unless_they_are_asked_not_to(name, args, kwargs, waits):
    class On(torch.Tensor):  # there is no GPU here
        device = property(lambda tensor: torch.device(tensor.kind))
        is_cuda = property(lambda tensor: tensor.kind == "cuda")

    def on(kind):
        tensor = torch.ones(1).as_subclass(On)
        tensor.kind = kind
        return tensor

    given = tuple(on(each) if isinstance(each, str) else each for each in args)
    assert _waits(name, "", given, kwargs) is waits


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "NAdam", "Adagrad"])
def test_an_optimizers_count_of_steps_is_no_wait_since_it_stays_on_the_cpu(optimizer):
    model = torch.nn.Linear(3, 1)
    made = getattr(torch.optim, optimizer)(model.parameters())
    for _ in range(2):  # the first step makes the counts
        with syncs() as found:
            model(torch.ones(2, 3)).sum().backward()
            made.step()
        assert found.count == 0


def test_beside_a_gpu_what_the_cpu_reads_of_its_own_is_no_wait_and_seconds_decide_the_order():
    x = torch.arange(4.0)
    with syncs() as found:
        x.nonzero()
        x.sum().item()
        # as a device would add them: there is none here
        found.waits.append(Wait("copy_", "b.py:2 in f", "other", True, 0.5))
        found.waits.append(Wait("cpu", "a.py:1 in g", "other", True, 0.1))
    assert found.ranked() == [("b.py:2 in f", 1, 0.5), ("a.py:1 in g", 1, 0.1)]
    assert "the host waited 2 times" in str(found)
    assert "500 ms" in str(found)


def test_what_is_compiled_is_eager_while_it_is_counted_and_compiled_again_afterwards():
    ran = []

    def backend(graph, inputs):
        return lambda *given: ran.append(1) or graph.forward(*given)

    compiled = torch.compile(lambda x: (x * 2).sum(), backend=backend)
    compiled(torch.ones(3))
    with syncs():
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert len(ran) == 2


def test_each_stage_has_its_syncs_those_of_a_backward_too():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: gradient * gradient.sum().item())
    ledger = Ledger()
    with syncs(ledger) as found, ledger:
        ledger.next_step()
        for stage, run in (("forward", x.sum), ("log", x.sum().item), ("backward", x.sum().backward)):
            with ledger.stage(stage):
                run()
    assert found.stages == {"log": 1, "backward": 1}
