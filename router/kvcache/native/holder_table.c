#include "bulk.h"
#include "holder_table.h"

/* Blocks next to each other mostly have the same int as their holders. What one became is used for the next: they go on
   sharing one int, and the same is not computed twice. */
typedef struct {
    PyObject *before; /* NULL: nothing computed yet */
    PyObject *after;  /* 0 where none is left */
} Change;

static void end_change(Change *change)
{
    Py_CLEAR(change->before);
    Py_CLEAR(change->after);
}

/* Computes what `before` becomes when `bit` is added or cleared; `before` itself where that changes nothing. */
static bool compute(Change *change, PyObject *before, PyObject *bit, bool adding)
{
    if (change->before == before) {
        return true;
    }
    PyObject *both = PyNumber_And(before, bit);
    if (both == NULL) {
        return false;
    }
    bool held = PyObject_IsTrue(both); /* an int: no error */
    Py_DECREF(both);
    PyObject *after = held == adding ? Py_NewRef(before) : PyNumber_Xor(before, bit);
    if (after == NULL) {
        return false;
    }
    end_change(change);
    change->before = Py_NewRef(before);
    change->after = after;
    return true;
}

static PyObject *holder_table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    uint64_t seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":HolderTable", names) || !choose_seed(&seed)) {
        return NULL;
    }
    HolderTable *self = (HolderTable *)type->tp_alloc(type, 0);
    if (self != NULL) {
        number_table_init(&self->table, seed);
    }
    return (PyObject *)self;
}

static int holder_table_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self)); /* the ints refer to nothing */
    return 0;
}

static void holder_table_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    NumberTable *table = &((HolderTable *)self)->table;
    PyObject_GC_UnTrack(self);
    size_t at = 0;
    const Segment *segment;
    while ((segment = number_table_next(table, &at)) != NULL) {
        for (uint32_t slot = 0; slot < segment->capacity; slot++) {
            if (segment->slots[slot].number != EMPTY) {
                Py_DECREF(holders_in(&segment->slots[slot]));
            }
        }
    }
    number_table_free(table);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t holder_table_length(PyObject *self)
{
    return (Py_ssize_t)((HolderTable *)self)->table.length;
}

static PyObject *holder_table_bits(PyObject *self, PyObject *number)
{
    uint64_t key;
    if (!read_wanted(number, &key)) {
        return NULL;
    }
    const Slot *slot = number_table_find(&((HolderTable *)self)->table, key);
    return slot == NULL ? PyLong_FromLong(0) : Py_NewRef(holders_in(slot));
}

/* Adds `bit` to one key. Returns whether it was not there, -1 with MemoryError. */
static int add_one(NumberTable *table, uint64_t key, PyObject *bit, Change *change)
{
    bool inserted;
    Slot *slot = number_table_insert(table, key, &inserted);
    if (slot == NULL) {
        return -1;
    }
    if (inserted) {
        slot->value = (uint64_t)(uintptr_t)Py_NewRef(bit);
        return 1;
    }
    PyObject *before = holders_in(slot);
    if (before == bit) {
        return 0;
    }
    if (!compute(change, before, bit, true)) {
        return -1;
    }
    if (change->after == before) {
        return 0;
    }
    slot->value = (uint64_t)(uintptr_t)Py_NewRef(change->after);
    Py_DECREF(before);
    return 1;
}

static PyObject *holder_table_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    NumberTable *table = &((HolderTable *)self)->table;
    Numbers keys;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "add() takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!is_bits(args[1])) {
        return NULL;
    }
    PyObject *entered = PyList_New(0); /* before the keys are read: a garbage collection may run Python code */
    if (entered == NULL || !read_keys(args[0], &keys)) {
        Py_XDECREF(entered);
        return NULL;
    }
    Change change = {NULL, NULL};
    for (Py_ssize_t at = 0; entered != NULL && at < keys.count; at++) {
        if (at % AT_ONCE == 0) {
            prefetch_numbers(table, &keys, at);
        }
        int is_new = add_one(table, keys.all[at], args[1], &change);
        if (is_new < 0 || (is_new && PyList_Append(entered, PyList_GET_ITEM(args[0], at)) < 0)) {
            Py_CLEAR(entered);
        }
    }
    end_change(&change);
    free_numbers(&keys);
    return entered;
}

static PyObject *holder_table_clear(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    NumberTable *table = &((HolderTable *)self)->table;
    Numbers keys;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "clear() takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!is_bits(args[1]) || !read_keys(args[0], &keys)) {
        return NULL;
    }
    Change change = {NULL, NULL};
    bool failed = false;
    for (Py_ssize_t at = 0; !failed && at < keys.count; at++) {
        if (at % AT_ONCE == 0) {
            prefetch_numbers(table, &keys, at);
        }
        Slot *slot = number_table_find(table, keys.all[at]);
        if (slot == NULL) {
            continue;
        }
        PyObject *before = holders_in(slot);
        failed = !compute(&change, before, args[1], false);
        if (failed || change.after == before) {
            continue;
        }
        if (PyObject_IsTrue(change.after)) {
            slot->value = (uint64_t)(uintptr_t)Py_NewRef(change.after);
        }
        else {
            uint64_t removed;
            number_table_remove(table, keys.all[at], &removed);
        }
        Py_DECREF(before);
    }
    end_change(&change);
    free_numbers(&keys);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *holder_table_sizeof(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromSize_t((size_t)Py_TYPE(self)->tp_basicsize + ((HolderTable *)self)->table.bytes);
}

static PyMethodDef holder_table_methods[] = {
    {"bits", holder_table_bits, METH_O, NULL},
    {"add", (PyCFunction)(void (*)(void))holder_table_add, METH_FASTCALL, NULL},
    {"clear", (PyCFunction)(void (*)(void))holder_table_clear, METH_FASTCALL, NULL},
    {"bisect", (PyCFunction)(void (*)(void))holder_table_bisect, METH_FASTCALL, NULL},
    {"walk", (PyCFunction)(void (*)(void))holder_table_walk, METH_FASTCALL, NULL},
    {"__sizeof__", holder_table_sizeof, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot holder_table_slots[] = {
    {Py_tp_new, holder_table_new},
    {Py_tp_traverse, holder_table_traverse},
    {Py_tp_dealloc, holder_table_dealloc},
    {Py_tp_methods, holder_table_methods},
    {Py_sq_length, holder_table_length},
    {0, NULL},
};

PyType_Spec holder_table_spec = {
    .name = "router.kvcache.bulk.HolderTable",
    .basicsize = sizeof(HolderTable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = holder_table_slots,
};
