"""The kernels under the views, as custom operations of torch.

`_spmm` multiplies a sparse CSR matrix by a dense one, with the kernel and tile width that it times as fastest on this
machine; `_tile_sums` does it by a GPU's tensor cores, with Triton's `_tile_kernel`. `_shared_sums` is K·A·(K·X) for
several relations with its gradient, and `_delta_sums` the same for rows that differ from the wild type. `_row_ops`
takes and adds up rows by index such that compiled code on a CPU is right.
"""
