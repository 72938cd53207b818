"""The core by itself: what it imports, and the sentences for what is not installed."""

import json
import subprocess
import sys
import tomllib

# what the extras bring, which cannot be imported in the test
BROUGHT = {
    "torch_geometric", "pandas", "pyarrow", "msgspec", "scipy", "tqdm", "geomloss", "cyclopts", "lmdb",
    "yaml", "lightning", "submitit", "altair", "ipywidgets", "anywidget", "papermill", "IPython",
}  # fmt: skip


MISSING = {
    "import tclab.sweeps": "tclab.sweeps needs pandas: in tclab's folder, pip install '.[sweep]'",
    "tclab.view(graph, [[1]], 'delta')": "the strategy delta needs scipy: in tclab's folder, pip install '.[sweep]'",
    "import tclab.readers": "tclab.readers needs pandas: in tclab's folder, pip install '.[readers]'",
    "import tclab.trace": "tclab.trace needs pandas: in tclab's folder, pip install '.[trace]'",
    "import tclab.command": "tclab.command needs cyclopts: in tclab's folder, pip install '.[sweep]'",
    "import tclab.case_study": "tclab.case_study needs pandas: in tclab's folder, pip install '.[lab]'",
}


def test_graphs_views_layers_and_a_ledger_need_torch_and_numpy_alone_and_what_is_missing_is_named_with_its_extra(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {line.split(">")[0] for line in project["dependencies"]} == {"torch", "numpy"}
    code = """
import json
import numpy, torch
before = {name.partition(".")[0] for name in sys.modules}
from tclab import SharedGraph
from tclab.message_passing import SharedGATv2Conv, SharedGCNConv, SharedGINConv, SharedHeteroConv, SharedSAGEConv
loaded = {name.partition(".")[0] for name in sys.modules} - before
ring = SharedGraph(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
keep = torch.tensor([[True, True], [True, False], [True, True]])
x = torch.ones(3, 2, 4, requires_grad=True)
for conv in (SharedGCNConv(4, 5), SharedGINConv(torch.nn.Linear(4, 5)), SharedSAGEConv(4, 5, aggr="max"),
             SharedGATv2Conv(4, 5)):
    conv(x, ring, keep).sum().backward()
hetero = SharedHeteroConv({("a", "to", "a"): SharedGCNConv(4, 5)})
hetero({"a": x}, {("a", "to", "a"): ring}, {"a": keep})["a"].sum().backward()
import tclab
graph = tclab.CellGraph.synthetic(0.02)
with tclab.view(graph, [[1], []]) as view:
    view.neighbour_sum("physical", view.lift(torch.ones(graph.num_nodes["gene"], 1)))
from tclab import timing
with timing.Ledger() as ledger:
    for _ in ledger.steps(range(3)):
        with ledger.stage("forward"):
            pass
assert str(ledger).startswith("3 steps\\ntimeline  stage ")
assert ">forward</td>" in ledger._repr_html_()
own = {name for name in loaded - sys.stdlib_module_names if not name.startswith("_sysconfigdata")}
print(json.dumps(sorted(own)))
"""
    code = f"import sys\nsys.modules.update(dict.fromkeys({BROUGHT}))\n{code}"
    told = "try:\n    {}\nexcept ImportError as error:\n    print(isinstance(error, tclab.InputError) and error)\n"
    code += "".join(map(told.format, MISSING))
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own, *missing = done.stdout.splitlines()
    assert (json.loads(own), missing) == (["tclab"], list(MISSING.values()))
