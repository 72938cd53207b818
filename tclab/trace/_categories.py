"""Categories of events, the parts of training: a table of rules, of which the first that matches decides.

`analyze(path, rules={"graph_processing": "my_mask|my_sampler"})` puts further rules in front.
"""

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tclab.trace._events import COLLECTIVE, DEVICE_CATEGORIES, IN_KERNEL, RUNTIME_CATEGORIES, Ints, Trace, matches

CATEGORIES = (
    "data_loading", "graph_processing", "model_forward", "loss_computation", "backward", "optimizer",
    "ddp_communication", "tensor_ops", "cuda_kernels", "other",
)  # fmt: skip
# Categories that are parts of the step; the others are kinds of work and belong to the stage around them.
STAGES = CATEGORIES[:7]
OUTSIDE = "outside any stage"


class Rule(NamedTuple):
    """A rule for the events whose name contains `name` and whose profiler category is one of `events`.

    **Arguments:**

    - `category`: of these events.
    - `name`: a regular expression (RE2), ignoring case; "" matches any name.
    - `events`: profiler categories in lower case, separated by spaces; "" matches any.
    - `sure`: whether these events are a stage of their own within a mark of another stage, too. A name that merely
      resembles a stage's is not: a module `LossHead` within the mark `forward`, a forward pass that the backward
      recomputes.
    """

    category: str
    name: str = ""
    events: str = ""
    sure: bool = False


_STAGES = "user_annotation"
_MARKS = f"{_STAGES} python_function"
_OPS = "cpu_op operator"
_CALLS = f"{_MARKS} {_OPS}"
# What a name says of other things: the folders of a user's file, and what Lightning's callbacks watch.
_BESIDE = re.compile(r"^(?!torch|dgl|.*site-packages/).*/(?=[^/]+\.py\()|(?<=\[Callback\]).*\}")
_DEVICE = " ".join(DEVICE_CATEGORIES)
_RUNTIME = " ".join(RUNTIME_CATEGORIES)

# fmt: off
RULES: tuple[Rule, ...] = (
    # stages of tclab.timing.Ledger(marks=True) that the names below do not tell, or not of an operator
    Rule("data_loading",      r"^ledger: (data_wait|wait|transfer)$"),
    Rule("graph_processing",  r"^ledger: mask$"),
    Rule("ddp_communication", r"^ledger: (communication|rank_wait)$"),
    # work of a device, and the calls that launch it or wait for it
    Rule("cuda_kernels",      IN_KERNEL, _DEVICE),
    Rule("ddp_communication", COLLECTIVE, _DEVICE),
    Rule("cuda_kernels",      r"", f"{_DEVICE} {_RUNTIME}"),
    # a collective is communication, whoever calls it
    Rule("ddp_communication", r"nccl:|gloo:|mpi:|c10d::|record_param_comms|distributed(\.ddp\.|::)reducer", sure=True),
    Rule("ddp_communication", r"all_?(reduce|gather|to_?all)|reduce_?scatter|gradient sync|grad_sync", sure=True),
    Rule("data_loading",      r"data_?load|dataset|collat|pin_memory|prefetch|lmdb|next_batch|batch_to_device", _CALLS),
    Rule("data_loading",      r"\bdata\b|transfer|h2d", _STAGES),
    Rule("graph_processing",  r"subgraph|neighbou?r|edge_?index|edge_?mask|graph_?process|coarsen", _MARKS),
    Rule("graph_processing",  r"torch_geometric[/.](data|sampler|transforms|utils)|pyg_lib|torch_sparse", _MARKS),
    Rule("graph_processing",  r"\bmask|\bgraph\b|\bview\b", _STAGES),
    Rule("graph_processing",  r"pyg::|torch_sparse::|torch_cluster::|dgl::", _OPS),
    # `MseLossBackward0` is backward, `Optimizer.zero_grad` optimizer: these two before loss and forward
    Rule("optimizer",         r"^optimizer[.# ]|\boptimi[sz]er\b|torch/optim/|zero_grad|clip_grad|: clip$", _CALLS),
    Rule("optimizer",         r"_fused_(adam|sgd)|_foreach_", _OPS),
    # an operator of torch.library with a gradient, called: its backward has `Backward` behind this name
    Rule("tensor_ops",        r"^GeneratedBackwardFor_\w+_default$", _OPS),
    Rule("backward",          r"autograd::|backward|accumulategrad|torch/autograd/(__init__|graph)"),
    Rule("loss_computation",  r"loss|cross_entropy|criterion", _CALLS),
    Rule("model_forward",     r"\bforward|torch/nn/|nn\.module:|training_step|## model", _CALLS),
    Rule("model_forward",     r"compiledfunction|torch-compiled region", _CALLS),
    Rule("tensor_ops",        r"^aten::|^prims?::|^triton|^torchvision::|^inductor::|^detach$", _OPS),
    Rule("other"),
)
# fmt: on


def first_rules(trace: Trace, rules: tuple[Rule, ...] = RULES) -> Ints:
    """Return the first rule that fits each event, [N] indices into `rules`, of which the last fits any.

    **Raises:** `ValueError` for a rule whose expression RE2 does not accept.
    """
    pairs, index = np.unique(trace.category * len(trace.names) + trace.name, return_inverse=True)
    category, name = np.divmod(pairs, max(len(trace.names), 1))
    first = np.full(len(pairs), len(rules) - 1, dtype=np.int64)
    undecided = np.ones(len(pairs), dtype=bool)
    told = [_BESIDE.sub("", each.replace("\\", "/")).encode("utf-8", "replace") for each in trace.names]
    for i, rule in enumerate(rules):
        fits = undecided & np.isin(trace.categories, rule.events.split() or trace.categories)[category]
        if rule.name and fits.any():
            asked, position = np.unique(name[fits], return_inverse=True)
            fits[fits] = matches(pa.array([told[each] for each in asked], pa.large_binary()), rule.name)[position]
        first[fits] = i
        undecided &= ~fits
    return first[index]


def categories_of(rule: Ints, rules: tuple[Rule, ...] = RULES) -> "pd.Categorical[Any]":
    """Return the categories of rules, [N]: of the ten, or of those that the rules add."""
    names = list(dict.fromkeys((*CATEGORIES, *(rule.category for rule in rules))))
    codes = np.array([names.index(rule.category) for rule in rules], dtype=np.int64)
    return pd.Categorical.from_codes(codes[rule], pd.Index(names))
