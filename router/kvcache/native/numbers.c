#include "numbers.h"

#if PY_VERSION_HEX < 0x030C0000 && PYLONG_BITS_IN_DIGIT == 30
/* Reads a positive int of up to 64 bits: a tenth of the time that Python's functions take. */
static bool read_digits(PyObject *number, uint64_t *value)
{
    Py_ssize_t digits = Py_SIZE(number);
    if (digits < 1 || digits > 3) {
        return false;
    }
    const digit *its = ((PyLongObject *)number)->ob_digit;
    *value = its[0];
    if (digits > 1) {
        *value |= (uint64_t)its[1] << 30;
    }
    if (digits > 2) {
        *value |= (uint64_t)its[2] << 60;
    }
    return digits < 3 || its[2] < 16;
}
#else
static bool read_digits(PyObject *Py_UNUSED(number), uint64_t *Py_UNUSED(value))
{
    return false;
}
#endif

uint64_t low_word(PyObject *bits)
{
    uint64_t word;
    return read_digits(bits, &word) ? word : PyLong_AsUnsignedLongLongMask(bits);
}

bool is_word(PyObject *bits, uint64_t *word)
{
    if (read_digits(bits, word)) {
        return true;
    }
    *word = PyLong_AsUnsignedLongLong(bits);
    if (*word == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return true;
}

bool read_hash(PyObject *number, uint64_t *hash)
{
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "an int is needed, not %.100s", Py_TYPE(number)->tp_name);
        return false;
    }
    if (!read_digits(number, hash)) {
        *hash = PyLong_AsUnsignedLongLongMask(number); /* fails for nothing that is an int */
    }
    *hash &= SHORT;
    return true;
}

bool read_wanted(PyObject *number, uint64_t *key)
{
    if (!PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "an int is needed, not %.100s", Py_TYPE(number)->tp_name);
        return false;
    }
    if (!read_digits(number, key)) {
        *key = PyLong_AsUnsignedLongLong(number);
    }
    if (*key == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear(); /* negative, or beyond 64 bits */
    }
    if (*key > SHORT) {
        *key = EMPTY;
    }
    return true;
}

bool read_key(PyObject *number, uint64_t *key)
{
    if (!read_wanted(number, key)) {
        return false;
    }
    if (*key == EMPTY) {
        PyErr_SetString(PyExc_OverflowError, "a key has 60 bits");
        return false;
    }
    return true;
}

static bool read_list(PyObject *list, Numbers *numbers, bool (*read)(PyObject *, uint64_t *))
{
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "a list is needed, not %.100s", Py_TYPE(list)->tp_name);
        return false;
    }
    Py_ssize_t count = numbers->count = PyList_GET_SIZE(list);
    numbers->all = numbers->few;
    if (count > AT_ONCE && (numbers->all = PyMem_New(uint64_t, count)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        if (!read(PyList_GET_ITEM(list, at), &numbers->all[at])) {
            free_numbers(numbers);
            return false;
        }
    }
    return true;
}

bool read_keys(PyObject *list, Numbers *numbers)
{
    return read_list(list, numbers, read_key);
}

bool read_hashes(PyObject *list, Numbers *numbers)
{
    return read_list(list, numbers, read_hash);
}

void free_numbers(Numbers *numbers)
{
    if (numbers->all != numbers->few) {
        PyMem_Free(numbers->all);
    }
}

void prefetch_numbers(const NumberTable *table, const Numbers *numbers, Py_ssize_t first)
{
    Py_ssize_t end = numbers->count - first > AT_ONCE ? first + AT_ONCE : numbers->count;
    for (Py_ssize_t at = first; at < end; at++) {
        number_table_prefetch(table, numbers->all[at]);
    }
}

bool open_keys(PyObject *sequence, KeySequence *keys)
{
    keys->sequence = sequence;
    keys->iterator = NULL;
    keys->buffered = false;
    if (PyObject_CheckBuffer(sequence)) {
        if (PyObject_GetBuffer(sequence, &keys->view, PyBUF_FORMAT | PyBUF_ND) < 0) {
            return false; /* a view with gaps */
        }
        if (keys->view.ndim == 1 && keys->view.itemsize == 8 && strcmp(keys->view.format, "Q") == 0) {
            keys->buffered = true;
            keys->length = keys->view.shape[0];
            return true;
        }
        PyBuffer_Release(&keys->view);
    }
    keys->length = PySequence_Size(sequence);
    return keys->length >= 0;
}

void close_keys(KeySequence *keys)
{
    Py_XDECREF(keys->iterator);
    if (keys->buffered) {
        PyBuffer_Release(&keys->view);
    }
}

bool key_at(const KeySequence *keys, Py_ssize_t position, uint64_t *key)
{
    if (keys->buffered) {
        memcpy(key, (const char *)keys->view.buf + 8 * position, 8);
        if (*key > SHORT) {
            *key = EMPTY;
        }
        return true;
    }
    PyObject *number = PySequence_GetItem(keys->sequence, position);
    if (number == NULL) {
        return false;
    }
    bool known = read_wanted(number, key);
    Py_DECREF(number);
    return known;
}

bool next_key(KeySequence *keys, Py_ssize_t position, uint64_t *key)
{
    if (keys->buffered) {
        return position < keys->length && key_at(keys, position, key);
    }
    if (keys->iterator == NULL && (keys->iterator = PyObject_GetIter(keys->sequence)) == NULL) {
        return false;
    }
    PyObject *number = PyIter_Next(keys->iterator);
    bool read = number != NULL && read_wanted(number, key);
    Py_XDECREF(number);
    return read;
}
