/* Block hashes as engines write them: ints with or without a sign, or digests. */

#include "bulk.h"

#define LABEL_BYTES 8 /* of a digest: its last ones */

static bool fold(PyObject *raw, uint64_t *hash)
{
    if (PyLong_CheckExact(raw)) {
        *hash = low_word(raw);
        return true;
    }
    if (!PyBytes_CheckExact(raw) || PyBytes_GET_SIZE(raw) < LABEL_BYTES) {
        return false;
    }
    const unsigned char *end = (const unsigned char *)PyBytes_AS_STRING(raw) + PyBytes_GET_SIZE(raw);
    *hash = 0;
    for (const unsigned char *at = end - LABEL_BYTES; at < end; at++) {
        *hash = *hash << 8 | *at;
    }
    return true;
}

static bool is_folded(PyObject *list)
{
    uint64_t hash;
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(list); at++) {
        PyObject *raw = PyList_GET_ITEM(list, at);
        if (!PyLong_CheckExact(raw) || !is_word(raw, &hash)) {
            return false;
        }
    }
    return true;
}

PyObject *fold_hashes(PyObject *Py_UNUSED(module), PyObject *list)
{
    if (!PyList_CheckExact(list)) {
        Py_RETURN_NONE;
    }
    if (is_folded(list)) {
        return Py_NewRef(list);
    }
    PyObject *folded = PyList_New(PyList_GET_SIZE(list));
    for (Py_ssize_t at = 0; folded != NULL && at < PyList_GET_SIZE(folded); at++) {
        uint64_t hash;
        if (!fold(PyList_GET_ITEM(list, at), &hash)) {
            Py_DECREF(folded);
            Py_RETURN_NONE;
        }
        PyObject *number = PyLong_FromUnsignedLongLong(hash);
        if (number == NULL) {
            Py_CLEAR(folded);
        }
        else {
            PyList_SET_ITEM(folded, at, number);
        }
    }
    return folded;
}
