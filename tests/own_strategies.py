"""Strategies of a user's own, which crash, hang, are wrong or count, in a file that child processes can import."""

import os
import signal

import torch

from tclab import masking
from tclab.message_passing import SharedView
from tclab.perturbation import Deletions

NodeMask = masking.get("node_mask")


def acts(name, act):
    class Acts(NodeMask):
        def view(self, batch):
            act()

    Acts.name = name
    masking.register(Acts)


def raises():
    raise ValueError("no \udcff such thing " + "x" * 1_000_000 + "\nand more")


def reads():
    print('{"rows": []}')  # which is no answer to the parent
    input()  # as a breakpoint() does


acts("crashes", lambda: os.kill(os.getpid(), signal.SIGSEGV))
acts("sleeps", signal.pause)
acts("raises", raises)
acts("reads", reads)
acts("greedy", lambda: torch.empty(1 << 50))


@masking.register
class InAByte(NodeMask):
    name = "in_a_byte"

    def view(self, batch):
        gene = batch.deletions["gene"]
        nodes = gene.nodes.to(torch.uint8).long()
        return SharedView(self.graph, {**batch.deletions, "gene": Deletions(nodes, gene.ptr, gene.most)})


@masking.register
class Counts(NodeMask):
    name = "counts"

    def view(self, batch):
        if batch.size == 2 and self.graph.num_nodes["gene"] > 100:
            with open(os.environ["OWN_COUNT"], "a") as count:
                count.write("a view of two samples of the whole graph\n")
        return super().view(batch)


@masking.register
class DeletesNothingFromThree(NodeMask):
    name = "deletes_nothing_from_three"

    def view(self, batch):
        if batch.size != 3:
            return super().view(batch)
        return SharedView(self.graph, {kind: Deletions.nothing(batch.size) for kind in self.graph.num_nodes})
