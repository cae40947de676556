/* Token ids from msgpack (github.com/msgpack/msgpack/blob/master/spec.md). */

#include "bulk.h"

#define NIL 0xC0
#define UINT_8 0xCC /* a number of 8 bits follows; up to INT_64: of 16, 32 and 64, then as many with a sign */
#define UINT_16 0xCD
#define UINT_32 0xCE
#define INT_8 0xD0
#define INT_64 0xD3
#define ARRAY_16 0xDC
#define ARRAY_32 0xDD

typedef struct {
    const unsigned char *at, *end;
} Packed;

/* Reads a big-endian number of `width` bytes. False at the end. */
static bool read_bytes(Packed *packed, int width, uint64_t *value)
{
    if (packed->end - packed->at < width) {
        return false;
    }
    *value = 0;
    for (int at = 0; at < width; at++) {
        *value = *value << 8 | *packed->at++;
    }
    return true;
}

/* Reads the head of an array. False for anything else. */
static bool read_length(Packed *packed, uint64_t *length)
{
    uint64_t head;
    if (!read_bytes(packed, 1, &head)) {
        return false;
    }
    if (head == ARRAY_16 || head == ARRAY_32) {
        return read_bytes(packed, head == ARRAY_16 ? 2 : 4, length);
    }
    *length = head & 0x0F;
    return (head & 0xF0) == 0x90;
}

/* Reads an int that is not negative. False for anything else, and beyond 32 bits. */
static bool read_id(Packed *packed, uint32_t *id)
{
    uint64_t head, value;
    if (!read_bytes(packed, 1, &head)) {
        return false;
    }
    if (head < 0x80) {
        *id = (uint32_t)head;
        return true;
    }
    const unsigned char *its = packed->at;
    if (head == UINT_16 && packed->end - its >= 2) { /* most ids have 16 or 32 bits: without read_bytes's loop */
        *id = (uint32_t)its[0] << 8 | its[1];
        packed->at += 2;
        return true;
    }
    if (head == UINT_32 && packed->end - its >= 4) {
        *id = (uint32_t)its[0] << 24 | (uint32_t)its[1] << 16 | (uint32_t)its[2] << 8 | its[3];
        packed->at += 4;
        return true;
    }
    if (head < UINT_8 || head > INT_64) {
        return false;
    }
    int width = 1 << (head & 3);
    if (!read_bytes(packed, width, &value) || value > UINT32_MAX) {
        return false;
    }
    *id = (uint32_t)value;
    return head < INT_8 || value >> (8 * width - 1) == 0;
}

static PyObject *unpack(Packed *packed)
{
    uint64_t length;
    if (packed->end - packed->at == 1 && *packed->at == NIL) {
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    if (!read_length(packed, &length) || length > (uint64_t)(packed->end - packed->at)) { /* an id has a byte at least */
        Py_RETURN_NONE;
    }
    PyObject *ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length * 4);
    if (ids == NULL) {
        return NULL;
    }
    char *to = PyBytes_AS_STRING(ids);
    for (uint64_t at = 0; at < length; at++) {
        uint32_t id;
        if (!read_id(packed, &id)) {
            Py_DECREF(ids);
            Py_RETURN_NONE;
        }
        memcpy(to + 4 * at, &id, 4);
    }
    if (packed->at != packed->end) {
        Py_DECREF(ids);
        Py_RETURN_NONE;
    }
    return ids;
}

PyObject *unpack_ids(PyObject *Py_UNUSED(module), PyObject *packed)
{
    Py_buffer view;
    if (PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    Packed all = {view.buf, (const unsigned char *)view.buf + view.len};
    PyObject *ids = unpack(&all);
    PyBuffer_Release(&view);
    return ids;
}
