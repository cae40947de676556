"""What can be seen of an HPACK header block (RFC 7541) without decoding it."""

from __future__ import annotations


def keeps_table(block: bytes) -> bool:
    """Return whether a header block leaves the decoder's table as it is: indexed fields, and literal ones that are not
    to be remembered (RFC 7541 6.1, 6.2.2, 6.2.3). Envoy's path is one of these, the rest of its blocks the others.
    """
    at, end = 0, len(block)
    try:
        while at < end:
            first = block[at]
            if first & 0x80:
                _, at = _read_integer(block, at, 0x7F)
            elif first & 0x60:  # to be remembered, or another size of the table
                return False
            else:
                name, at = _read_integer(block, at, 0x0F)
                for _ in range(1 if name else 2):
                    length, at = _read_integer(block, at, 0x7F)
                    at += length
    except IndexError:
        return False
    return at == end


def _read_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return the integer whose first byte has the bits `mask` for it, and where it ends (RFC 7541 5.1)."""
    value = block[at] & mask
    at += 1
    if value == mask:
        shift = 0
        while True:
            more = block[at]
            at += 1
            value += (more & 0x7F) << shift
            shift += 7
            if not more & 0x80 or shift > 28:
                break
    return value, at
