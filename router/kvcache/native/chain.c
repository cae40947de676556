/* Chained keys of blocks. The hash is XXH3_64bits_withSeed of xxHash 0.8 (github.com/Cyan4973/xxHash) for inputs of 17 to
   240 bytes, which is what blocks of 3 to 58 tokens need; test_bulk.py compares it with the xxhash package. */

#include "bulk.h"

#define PRIME_1 UINT64_C(0x9E3779B185EBCA87)
#define PARENT_BYTES 8
#define SHORT_BYTES 128

static const unsigned char SECRET[] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
};

static uint64_t little_endian(uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

static uint64_t read_word(const unsigned char *from)
{
    uint64_t word;
    memcpy(&word, from, 8);
    return little_endian(word);
}

static uint64_t mix(const unsigned char *from, size_t secret, uint64_t seed)
{
    uint64_t low = read_word(from) ^ (read_word(SECRET + secret) + seed);
    uint64_t high = read_word(from + 8) ^ (read_word(SECRET + secret + 8) - seed);
    unsigned __int128 product = (unsigned __int128)low * high;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t hash)
{
    hash = (hash ^ (hash >> 37)) * UINT64_C(0x165667919E3779F9);
    return hash ^ (hash >> 32);
}

static uint64_t hash_bytes(const unsigned char *from, size_t length, uint64_t seed)
{
    uint64_t sum = length * PRIME_1;
    if (length <= SHORT_BYTES) { /* pieces of 16 bytes from both ends inwards */
        for (size_t pair = (length - 1) / 32 + 1; pair-- > 0;) {
            sum += mix(from + 16 * pair, 32 * pair, seed);
            sum += mix(from + length - 16 * (pair + 1), 32 * pair + 16, seed);
        }
        return avalanche(sum);
    }
    for (size_t piece = 0; piece < 8; piece++) {
        sum += mix(from + 16 * piece, 16 * piece, seed);
    }
    sum = avalanche(sum);
    for (size_t piece = 8; piece < length / 16; piece++) {
        sum += mix(from + 16 * piece, 16 * (piece - 8) + 3, seed);
    }
    return avalanche(sum + mix(from + length - 16, 136 - 17, seed));
}

static PyObject *chain_blocks(uint64_t key, const Py_buffer *ids, Py_ssize_t width, uint64_t secret)
{
    unsigned char block[PARENT_BYTES + MOST_CHAINED_BYTES];
    Py_ssize_t count = ids->len / width;
    PyObject *keys = PyList_New(count);
    for (Py_ssize_t at = 0; keys != NULL && at < count; at++) {
        uint64_t before = little_endian(key);
        memcpy(block, &before, PARENT_BYTES);
        memcpy(block + PARENT_BYTES, (const char *)ids->buf + at * width, (size_t)width);
        key = hash_bytes(block, (size_t)(PARENT_BYTES + width), secret) & SHORT;
        PyObject *number = PyLong_FromUnsignedLongLong(key);
        if (number == NULL) {
            Py_CLEAR(keys);
        }
        else {
            PyList_SET_ITEM(keys, at, number);
        }
    }
    return keys;
}

PyObject *chain_keys(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    uint64_t parent;
    Py_buffer ids;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "chain_keys() takes 4 arguments, not %zd", count);
        return NULL;
    }
    Py_ssize_t width = PyNumber_AsSsize_t(args[2], PyExc_OverflowError);
    if (!read_key(args[0], &parent) || (width == -1 && PyErr_Occurred())) {
        return NULL;
    }
    uint64_t secret = PyLong_AsUnsignedLongLong(args[3]);
    if (secret == UINT64_MAX && PyErr_Occurred()) {
        return NULL;
    }
    if (width < LEAST_CHAINED_BYTES || width > MOST_CHAINED_BYTES) {
        PyErr_Format(PyExc_ValueError, "blocks of %zd bytes", width);
        return NULL;
    }
    if (PyObject_GetBuffer(args[1], &ids, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *keys = chain_blocks(parent, &ids, width, secret);
    PyBuffer_Release(&ids);
    return keys;
}
