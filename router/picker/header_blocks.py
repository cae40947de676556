"""Header blocks in HPACK (RFC 7541): the path of a call, and whether an undecoded block changes the table."""

from __future__ import annotations

from hpack import Decoder, HPACKError

from router.picker.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error

HEADER_BYTES = 16 * 1024  # of one header block, and of the fields in it
KNOWN_BLOCKS = 64  # header blocks whose path is remembered


class PathReader:
    """Reads the header blocks of a connection, in the order in which they arrive."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._decoder.max_header_list_size = HEADER_BYTES
        self._paths: dict[bytes, bytes] = {}

    def read(self, block: bytes) -> bytes:
        """Return the path of a call. A block that keeps the table means the same until another block changes the
        table. Raises `Http2Error`.
        """
        if (path := self._paths.get(block)) is not None:
            return path
        if len(block) > HEADER_BYTES:
            raise Http2Error(ENHANCE_YOUR_CALM)
        try:
            fields = dict(self._decoder.decode(block, raw=True))
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(COMPRESSION_ERROR) from error
        path = fields.get(b":path", b"")
        keeps = keeps_table(block)
        if not keeps or len(self._paths) >= KNOWN_BLOCKS:
            self._paths.clear()
        if keeps:
            self._paths[block] = path
        return path


def keeps_table(block: bytes) -> bool:
    """Return whether a header block leaves the decoder's table unchanged: it has only indexed fields, and literal
    fields that are not to be indexed (RFC 7541 6.1, 6.2.2, 6.2.3). In Envoy's blocks the path is of the second
    kind, the rest of the first.
    """
    at, end = 0, len(block)
    try:
        while at < end:
            first = block[at]
            if first & 0x80:
                _, at = _read_integer(block, at, 0x7F)
            elif first & 0x60:  # a field to be indexed, or another size of the table
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
    """Return the integer whose first byte uses the bits `mask`, and where it ends (RFC 7541 5.1)."""
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
