"""The kernels under the views and the drop-in convolutions.

`_spmm` multiplies sparse matrices by the rows of all samples: for several relations over the same rows, or for the
sum over relations, each the other's gradient, both by one custom operation. On a GPU it sums two bytes by
`_tile_sums`, tiles of Triton's `_tile_kernel` on tensor cores. `_edge_blocks` computes what needs single edges,
attention and maximum, a block of edges at a time.
`_row_ops` takes and adds up rows by index, as views of edge lists do, such that compiled code on a CPU is right.
"""
