#include "holder_table.h"

/* Stores the leading blocks of `bits`. */
static bool set_run(PyObject *runs, PyObject *bits, Py_ssize_t blocks)
{
    PyObject *number = PyLong_FromSsize_t(blocks);
    if (number == NULL) {
        return false;
    }
    bool done = PyDict_SetItem(runs, bits, number) == 0;
    Py_DECREF(number);
    return done;
}

typedef struct {
    Py_ssize_t low, high; /* these bits hold `low` blocks at least and `high` at most */
    PyObject *bits;
} Range;

typedef struct {
    Range *all;
    size_t count, room;
} Ranges;

static bool push(Ranges *pending, Py_ssize_t low, Py_ssize_t high, PyObject *bits)
{
    if (pending->count == pending->room) {
        size_t room = pending->room ? 2 * pending->room : 16;
        Range *all = PyMem_Resize(pending->all, Range, room);
        if (all == NULL) {
            PyErr_NoMemory();
            return false;
        }
        pending->all = all;
        pending->room = room;
    }
    pending->all[pending->count++] = (Range){low, high, Py_NewRef(bits)};
    return true;
}

/* Halves `range` until its bits go equally far; those that go further are pushed. */
static bool narrow(const NumberTable *table, const KeySequence *keys, Range *range, Ranges *pending)
{
    while (range->low < range->high) {
        Py_ssize_t middle = range->low + (range->high - range->low) / 2;
        uint64_t key;
        if (!key_at(keys, middle, &key)) {
            return false;
        }
        const Slot *slot = number_table_find(table, key);
        if (slot == NULL) {
            range->high = middle;
            continue;
        }
        PyObject *further = PyNumber_And(holders_in(slot), range->bits);
        if (further == NULL) {
            return false;
        }
        int all = PyObject_RichCompareBool(further, range->bits, Py_EQ);
        bool done = true;
        if (all > 0) {
            range->low = middle + 1;
        }
        else {
            if (PyObject_IsTrue(further)) {
                PyObject *rest = PyNumber_Xor(range->bits, further);
                done = rest != NULL && push(pending, middle + 1, range->high, further);
                if (rest != NULL) {
                    Py_SETREF(range->bits, rest);
                }
            }
            range->high = middle;
        }
        Py_DECREF(further);
        if (!done) {
            return false;
        }
    }
    return true;
}

/* As bisect, for targets whose bits are all within a word: no number of Python's is made on the way. */
typedef struct {
    Py_ssize_t low, high;
    uint64_t bits;
} WordRange;

static bool bisect_word(const NumberTable *table, const KeySequence *keys, uint64_t bits, PyObject *runs)
{
    WordRange pending[64] = {{0, keys->length, bits}}; /* their bits are disjoint and none is empty */
    int count = bits != 0;
    while (count) {
        WordRange range = pending[--count];
        while (range.low < range.high) {
            Py_ssize_t middle = range.low + (range.high - range.low) / 2;
            uint64_t key;
            if (!key_at(keys, middle, &key)) {
                return false;
            }
            const Slot *slot = number_table_find(table, key);
            uint64_t further = slot == NULL ? 0 : low_word(holders_in(slot)) & range.bits;
            if (further == range.bits) {
                range.low = middle + 1;
                continue;
            }
            if (further) {
                pending[count++] = (WordRange){middle + 1, range.high, further};
                range.bits ^= further;
            }
            range.high = middle;
        }
        PyObject *reached = range.low ? PyLong_FromUnsignedLongLong(range.bits) : NULL;
        if (range.low && (reached == NULL || !set_run(runs, reached, range.low))) {
            Py_XDECREF(reached);
            return false;
        }
        Py_XDECREF(reached);
    }
    return true;
}

PyObject *holder_table_bisect(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    KeySequence keys;
    Ranges pending = {NULL, 0, 0};
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "bisect() takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!is_bits(args[1]) || !open_keys(args[0], &keys)) {
        return NULL;
    }
    PyObject *runs = PyDict_New();
    uint64_t word;
    if (runs != NULL && is_word(args[1], &word)) {
        if (!bisect_word(&((HolderTable *)self)->table, &keys, word, runs)) {
            Py_CLEAR(runs);
        }
        close_keys(&keys);
        return runs;
    }
    bool done = runs != NULL && (!PyObject_IsTrue(args[1]) || push(&pending, 0, keys.length, args[1]));
    while (done && pending.count) {
        Range range = pending.all[--pending.count];
        done = narrow(&((HolderTable *)self)->table, &keys, &range, &pending) &&
               (range.low == 0 || set_run(runs, range.bits, range.low));
        Py_DECREF(range.bits);
    }
    while (pending.count) {
        Py_DECREF(pending.all[--pending.count].bits);
    }
    PyMem_Free(pending.all);
    close_keys(&keys);
    if (!done) {
        Py_CLEAR(runs);
    }
    return runs;
}

/* Returns which of `alive` hold `key` in `table`, or in `slower` where those are not all; NULL with MemoryError. */
static PyObject *holding(const NumberTable *table, PyObject *slower, uint64_t key, PyObject *alive)
{
    const Slot *slot = number_table_find(table, key);
    PyObject *held = slot == NULL ? PyLong_FromLong(0) : PyNumber_And(holders_in(slot), alive);
    for (Py_ssize_t at = 0; held != NULL && at < PyTuple_GET_SIZE(slower); at++) {
        slot = number_table_find(&((HolderTable *)PyTuple_GET_ITEM(slower, at))->table, key);
        PyObject *more = slot == NULL ? NULL : PyNumber_And(holders_in(slot), alive);
        if (slot == NULL) {
            continue;
        }
        Py_SETREF(held, more == NULL ? NULL : PyNumber_Or(held, more));
        Py_XDECREF(more);
    }
    return held;
}

/* Ends the runs of those that are not in `held` at `position`. Returns those that go on, NULL with MemoryError. */
static PyObject *drop_out(PyObject *runs, PyObject *alive, PyObject *held, Py_ssize_t position)
{
    PyObject *gone = PyNumber_Xor(alive, held);
    bool done = gone != NULL && (!PyObject_IsTrue(gone) || position == 0 || set_run(runs, gone, position));
    Py_XDECREF(gone);
    return done ? Py_NewRef(held) : NULL;
}

/* Fills `runs`; `alive` is given up. */
static bool walk(const NumberTable *table, PyObject *slower, KeySequence *keys, PyObject *alive, PyObject *runs)
{
    PyObject *last = NULL; /* the holders of the block before, where all of `alive` are in them */
    bool done = true;
    for (Py_ssize_t position = 0; done && PyObject_IsTrue(alive); position++) {
        uint64_t key;
        if (!next_key(keys, position, &key)) {
            done = !PyErr_Occurred();
            break;
        }
        const Slot *slot = number_table_find(table, key);
        if (slot != NULL && holders_in(slot) == last) {
            continue;
        }
        Py_XSETREF(last, slot == NULL || PyTuple_GET_SIZE(slower) ? NULL : Py_NewRef(holders_in(slot)));
        PyObject *held = holding(table, slower, key, alive);
        PyObject *still = held == NULL ? NULL : drop_out(runs, alive, held, position);
        Py_XDECREF(held);
        done = still != NULL;
        if (done) {
            Py_SETREF(alive, still);
        }
    }
    Py_XDECREF(last);
    done = done && (keys->length == 0 || !PyObject_IsTrue(alive) || set_run(runs, alive, keys->length));
    Py_DECREF(alive);
    return done;
}

PyObject *holder_table_walk(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    KeySequence keys;
    if (count != 3) {
        PyErr_Format(PyExc_TypeError, "walk() takes 3 arguments, not %zd", count);
        return NULL;
    }
    bool valid = PyTuple_CheckExact(args[2]);
    for (Py_ssize_t at = 0; valid && at < PyTuple_GET_SIZE(args[2]); at++) {
        valid = Py_IS_TYPE(PyTuple_GET_ITEM(args[2], at), Py_TYPE(self));
    }
    if (!valid) {
        PyErr_SetString(PyExc_TypeError, "the slower tiers are a tuple of HolderTable");
        return NULL;
    }
    if (!is_bits(args[1]) || !open_keys(args[0], &keys)) {
        return NULL;
    }
    PyObject *runs = PyDict_New();
    if (runs != NULL && !walk(&((HolderTable *)self)->table, args[2], &keys, Py_NewRef(args[1]), runs)) {
        Py_CLEAR(runs);
    }
    close_keys(&keys);
    return runs;
}
