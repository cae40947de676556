/* HolderTable: its type is in holder_table.c, how far targets hold a prompt in holder_search.c. */

#ifndef WARMROUTE_HOLDER_TABLE_H
#define WARMROUTE_HOLDER_TABLE_H

#include "numbers.h"

typedef struct {
    PyObject_HEAD
    NumberTable table; /* the values are references to exact ints, never 0 */
} HolderTable;

static inline PyObject *holders_in(const Slot *slot)
{
    return (PyObject *)(uintptr_t)slot->value;
}

static inline bool is_bits(PyObject *bits)
{
    if (!PyLong_CheckExact(bits)) {
        PyErr_Format(PyExc_TypeError, "bits are an int, not %.100s", Py_TYPE(bits)->tp_name);
        return false;
    }
    return true;
}

PyObject *holder_table_bisect(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *holder_table_walk(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
