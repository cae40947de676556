#include "bulk.h"

#define NO_KEY UINT64_MAX /* as a value: the block is an orphan */

typedef struct {
    PyObject_HEAD
    NumberTable table;
} KeyTable;

static PyObject *key_table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    uint64_t seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":KeyTable", names) || !choose_seed(&seed)) {
        return NULL;
    }
    KeyTable *self = (KeyTable *)type->tp_alloc(type, 0);
    if (self != NULL) {
        number_table_init(&self->table, seed);
    }
    return (PyObject *)self;
}

static int key_table_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void key_table_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    number_table_free(&((KeyTable *)self)->table);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t key_table_length(PyObject *self)
{
    return (Py_ssize_t)((KeyTable *)self)->table.length;
}

static int key_table_contains(PyObject *self, PyObject *number)
{
    uint64_t hash;
    return read_hash(number, &hash) ? number_table_find(&((KeyTable *)self)->table, hash) != NULL : -1;
}

static PyObject *key_table_get(PyObject *self, PyObject *number)
{
    uint64_t hash;
    if (!read_hash(number, &hash)) {
        return NULL;
    }
    const Slot *slot = number_table_find(&((KeyTable *)self)->table, hash);
    if (slot == NULL || slot->value == NO_KEY) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLongLong(slot->value);
}

static PyObject *key_table_set(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t hash, key = NO_KEY;
    bool inserted;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "set() takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!read_hash(args[0], &hash) || (args[1] != Py_None && !read_key(args[1], &key))) {
        return NULL;
    }
    Slot *slot = number_table_insert(&((KeyTable *)self)->table, hash, &inserted);
    if (slot == NULL) {
        return NULL;
    }
    slot->value = key;
    Py_RETURN_NONE;
}

static PyObject *key_table_is_new(PyObject *self, PyObject *list)
{
    NumberTable *table = &((KeyTable *)self)->table;
    Numbers hashes;
    if (!read_hashes(list, &hashes)) {
        return NULL;
    }
    bool found = false;
    for (Py_ssize_t at = 0; at < hashes.count && !found; at++) {
        if (at % AT_ONCE == 0) {
            prefetch_numbers(table, &hashes, at);
        }
        found = number_table_find(table, hashes.all[at]) != NULL;
    }
    free_numbers(&hashes);
    return PyBool_FromLong(!found);
}

/* Returns how many of `hashes` were inserted with their keys before one that was there; -1 with MemoryError, after
   taking them out again. */
static Py_ssize_t insert_new(NumberTable *table, const Numbers *hashes, const Numbers *keys)
{
    uint64_t value;
    for (Py_ssize_t at = 0; at < hashes->count; at++) {
        bool inserted;
        Slot *slot = number_table_insert(table, hashes->all[at], &inserted);
        if (slot != NULL && inserted) {
            slot->value = keys->all[at];
            continue;
        }
        for (Py_ssize_t made = 0; made < at; made++) {
            number_table_remove(table, hashes->all[made], &value);
        }
        return slot == NULL ? -1 : at;
    }
    return hashes->count;
}

static PyObject *key_table_add_new(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Numbers hashes, keys;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "add_new() takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!read_hashes(args[0], &hashes)) {
        return NULL;
    }
    if (!read_keys(args[1], &keys)) {
        free_numbers(&hashes);
        return NULL;
    }
    PyObject *answer = NULL;
    if (hashes.count != keys.count) {
        PyErr_Format(PyExc_ValueError, "%zd hashes with %zd keys", hashes.count, keys.count);
    }
    else {
        Py_ssize_t inserted = insert_new(&((KeyTable *)self)->table, &hashes, &keys);
        answer = inserted < 0 ? NULL : PyBool_FromLong(inserted == hashes.count);
    }
    free_numbers(&hashes);
    free_numbers(&keys);
    return answer;
}

static bool append_key(PyObject *list, uint64_t key)
{
    PyObject *number = PyLong_FromUnsignedLongLong(key);
    if (number == NULL) {
        return false;
    }
    bool done = PyList_Append(list, number) == 0;
    Py_DECREF(number);
    return done;
}

static PyObject *key_table_take(PyObject *self, PyObject *list)
{
    NumberTable *table = &((KeyTable *)self)->table;
    Numbers hashes;
    if (!read_hashes(list, &hashes)) {
        return NULL;
    }
    PyObject *keys = PyList_New(0);
    for (Py_ssize_t at = 0; keys != NULL && at < hashes.count; at++) {
        uint64_t key;
        if (at % AT_ONCE == 0) {
            prefetch_numbers(table, &hashes, at);
        }
        if (number_table_remove(table, hashes.all[at], &key) && key != NO_KEY && !append_key(keys, key)) {
            Py_CLEAR(keys);
        }
    }
    free_numbers(&hashes);
    return keys;
}

static PyObject *key_table_take_some(PyObject *self, PyObject *number)
{
    Py_ssize_t most = PyNumber_AsSsize_t(number, PyExc_OverflowError);
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PopCursor cursor = {0, 0, false};
    Slot slot;
    PyObject *keys = PyList_New(0);
    while (keys != NULL && most-- > 0 && number_table_pop(&((KeyTable *)self)->table, &cursor, &slot)) {
        if (slot.value != NO_KEY && !append_key(keys, slot.value)) {
            Py_CLEAR(keys);
        }
    }
    return keys;
}

static PyObject *key_table_save(PyObject *self, PyObject *Py_UNUSED(none))
{
    const NumberTable *table = &((KeyTable *)self)->table;
    size_t at = 0, known = 0;
    const Segment *segment;
    while ((segment = number_table_next(table, &at)) != NULL) {
        for (uint32_t slot = 0; slot < segment->capacity; slot++) {
            known += segment->slots[slot].number != EMPTY && segment->slots[slot].value != NO_KEY;
        }
    }
    PyObject *hashes = PyBytes_FromStringAndSize(NULL, 8 * known);
    PyObject *keys = PyBytes_FromStringAndSize(NULL, 8 * known);
    PyObject *orphans = PyBytes_FromStringAndSize(NULL, 8 * (table->length - known));
    PyObject *saved = NULL;
    if (hashes != NULL && keys != NULL && orphans != NULL) {
        char *hash = PyBytes_AS_STRING(hashes), *key = PyBytes_AS_STRING(keys), *orphan = PyBytes_AS_STRING(orphans);
        at = 0;
        while ((segment = number_table_next(table, &at)) != NULL) {
            for (uint32_t place = 0; place < segment->capacity; place++) {
                const Slot *slot = &segment->slots[place];
                if (slot->number == EMPTY) {
                    continue;
                }
                char **end = slot->value == NO_KEY ? &orphan : &hash;
                memcpy(*end, &slot->number, 8);
                *end += 8;
                if (slot->value != NO_KEY) {
                    memcpy(key, &slot->value, 8);
                    key += 8;
                }
            }
        }
        saved = PyTuple_Pack(3, hashes, keys, orphans);
    }
    Py_XDECREF(hashes);
    Py_XDECREF(keys);
    Py_XDECREF(orphans);
    return saved;
}

static PyObject *key_table_sizeof(PyObject *self, PyObject *Py_UNUSED(none))
{
    return PyLong_FromSize_t((size_t)Py_TYPE(self)->tp_basicsize + ((KeyTable *)self)->table.bytes);
}

static PyMethodDef key_table_methods[] = {
    {"get", key_table_get, METH_O, NULL},
    {"set", (PyCFunction)(void (*)(void))key_table_set, METH_FASTCALL, NULL},
    {"is_new", key_table_is_new, METH_O, NULL},
    {"add_new", (PyCFunction)(void (*)(void))key_table_add_new, METH_FASTCALL, NULL},
    {"take", key_table_take, METH_O, NULL},
    {"take_some", key_table_take_some, METH_O, NULL},
    {"save", key_table_save, METH_NOARGS, NULL},
    {"__sizeof__", key_table_sizeof, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot key_table_slots[] = {
    {Py_tp_new, key_table_new},
    {Py_tp_traverse, key_table_traverse},
    {Py_tp_dealloc, key_table_dealloc},
    {Py_tp_methods, key_table_methods},
    {Py_sq_length, key_table_length},
    {Py_sq_contains, key_table_contains},
    {0, NULL},
};

PyType_Spec key_table_spec = {
    .name = "router.kvcache.bulk.KeyTable",
    .basicsize = sizeof(KeyTable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = key_table_slots,
};
