"""How a process gives memory back; by default glibc faults a large tensor's pages in again and again."""

# glibc's settings for each allocator; they must be in the environment when a process starts
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "keep_pages": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "1099511627776",
        "MALLOC_TOP_PAD_": "268435456",
    },
    "map_each": {"MALLOC_MMAP_THRESHOLD_": "131072"},
}
