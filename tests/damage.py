"""Damage to the bytes of a file, of the kinds that every format can meet."""

KINDS = 3


def damage(data, at, length, kind, draw):
    """Change a bit (kind 0), or write noise (1) or zeros (2) over a stretch, in place."""
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[at : at + length] = draw.randbytes(length)
    else:
        data[at : at + length] = bytes(length)
