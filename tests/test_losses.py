"""The losses: SupCR against its loops, Sinkhorn against sorting, the buffer; between ranks: test_ranks.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tclab.models import MleWassSupCR
from tclab.models._hetero_cell import HeteroCellOutput
from tclab.models._losses import sup_cr
from tclab.timing import syncs


def sup_cr_by_loops(z, targets, temperature):
    """The definition, anchor by anchor and pair by pair."""
    unit = z / z.norm(dim=1, keepdim=True)
    number, total = len(z), torch.zeros((), dtype=z.dtype)
    for i in range(number):
        for j in range(number):
            if j == i:
                continue
            distance = abs(float(targets[i]) - float(targets[j]))
            below = torch.zeros((), dtype=z.dtype)
            for k in range(number):
                if k != i and abs(float(targets[i]) - float(targets[k])) >= distance:
                    below = below + torch.exp(unit[i] @ unit[k] / temperature)
            total = total - (unit[i] @ unit[j] / temperature - torch.log(below))
    return total / (number * (number - 1))


@given(
    st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 2.0]), min_size=2, max_size=8),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_sup_cr_and_its_gradient_are_what_the_loops_say(targets, temperature, seed):
    generator = torch.Generator().manual_seed(seed)  # scores from five values: most of them have equals
    z = torch.randn(len(targets), 4, dtype=torch.float64, generator=generator)
    targets = torch.tensor(targets, dtype=torch.float64)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    found, expected = sup_cr(ours, targets, temperature=temperature), sup_cr_by_loops(theirs, targets, temperature)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("number", [0, 1])
def test_sup_cr_of_no_pair_is_zero_and_has_a_gradient(number):
    z = torch.randn(number, 4, requires_grad=True)
    loss = sup_cr(z, torch.zeros(number))
    loss.backward()
    assert loss == 0
    assert not z.grad.any()


def output(batch, *, seed=0, width=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    predictions = torch.randn(batch, dtype=dtype, generator=generator)
    z_p = torch.randn(batch, width, dtype=dtype, generator=generator)
    targets = torch.randn(batch, dtype=dtype, generator=generator)
    return HeteroCellOutput(predictions.requires_grad_(), z_p.requires_grad_()), targets


@pytest.mark.parametrize(("blur", "apart"), [(0.001, 2e-3), (0.05, 2e-3), (2.0, None)])
def test_the_sinkhorn_term_is_the_exact_one_where_the_blur_is_small(blur, apart):
    out, targets = output(200, dtype=torch.float64)
    targets = 0.5 * targets + 1.0
    with_term, without = (
        MleWassSupCR(wasserstein=weight, sup_cr=0.0, blur=blur)(out, targets) for weight in (1.0, 0.0)
    )
    # in one dimension the best transport pairs the smallest with the smallest
    exact = 0.5 * (out.predictions.sort().values - targets.sort().values).square().mean()
    found = (with_term - without).item()
    if apart is None:  # a blur as wide as the distributions sees their means alone
        assert found == pytest.approx(0.5 * (out.predictions.mean() - targets.mean()).square().item(), rel=0.1)
        assert found < 0.95 * exact
    else:
        assert found == pytest.approx(exact.item(), rel=apart)


def by_definition(out, targets, remembered=None):
    """Return the loss of a batch: its error, and both other terms also over what is remembered of earlier ones."""
    before, targets_before = remembered or (HeteroCellOutput(out.predictions[:0], out.z_p[:0]), targets[:0])
    predictions = torch.cat([out.predictions, before.predictions.detach()])
    z, every = torch.cat([out.z_p, before.z_p.detach()]), torch.cat([targets, targets_before])
    one = MleWassSupCR(sup_cr=0.0, wasserstein=1.0)(HeteroCellOutput(predictions, z), every)
    wasserstein = one - (predictions - every).square().mean()
    return (out.predictions - targets).square().mean() + 0.1 * wasserstein + 0.001 * sup_cr(z, every)


def test_the_loss_is_the_sum_of_its_three_terms_and_remembered_batches_count_and_get_no_gradient():
    first, second = output(6, seed=1), output(5, seed=2)
    loss = MleWassSupCR()
    torch.testing.assert_close(loss(*first), by_definition(*first))
    found = loss(*second)
    torch.testing.assert_close(found, by_definition(*second, remembered=first))
    found.backward()
    assert first[0].predictions.grad is None
    assert second[0].predictions.grad is not None
    assert second[0].z_p.grad.abs().sum() > 0  # z_p is reached by the contrast alone


def test_the_loss_lets_the_host_go_on_from_step_to_step():
    loss = MleWassSupCR(capacity=8)
    for seed in range(4):  # an empty, a filling, a full and a wrapped buffer
        out, targets = output(5, seed=seed)
        with syncs() as found:
            loss(out, targets).backward()
        assert found.count == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_the_last_rows_are_remembered(sizes, capacity):
    loss, pushed = MleWassSupCR(capacity=capacity), []
    for size in sizes:
        rows = torch.arange(len(pushed), len(pushed) + size, dtype=torch.float32)
        loss(HeteroCellOutput(rows, rows.unsqueeze(1).expand(-1, 3)), rows)
        pushed += rows.tolist()
    assert loss.remembered["targets"].tolist() == loss.remembered["predictions"].tolist() == pushed[-capacity:]
    assert torch.equal(loss.remembered["z_p"][:, 2], loss.remembered["targets"])


def test_under_autocast_it_is_worked_out_in_float32():
    out, targets = output(20)
    half = HeteroCellOutput(out.predictions.bfloat16(), out.z_p.bfloat16())
    whole = HeteroCellOutput(half.predictions.float(), half.z_p.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = MleWassSupCR()(half, targets)
    assert torch.equal(found, MleWassSupCR()(whole, targets))
