/* Python's numbers as C's: lists of block keys and of engines' hashes, and sequences of keys that are looked up. */

#ifndef WARMROUTE_NUMBERS_H
#define WARMROUTE_NUMBERS_H

#include "number_table.h"

#define AT_ONCE 64 /* entries whose slots are fetched together; read without an allocation */

typedef struct {
    uint64_t few[AT_ONCE];
    uint64_t *all;
    Py_ssize_t count;
} Numbers;

/* Reads a list of keys. False with TypeError for what is no list of ints, OverflowError beyond 60 bits, MemoryError. */
bool read_keys(PyObject *list, Numbers *numbers);

/* Reads the low 60 bits of a list of ints. False with TypeError or MemoryError. */
bool read_hashes(PyObject *list, Numbers *numbers);

/* Frees what either has allocated. */
void free_numbers(Numbers *numbers);

/* Reads one key. False with TypeError or OverflowError. */
bool read_key(PyObject *number, uint64_t *key);

/* Reads the low 60 bits of one int. False with TypeError. */
bool read_hash(PyObject *number, uint64_t *hash);

/* Loads the slots of the numbers from `first` on, AT_ONCE at most. */
void prefetch_numbers(const NumberTable *table, const Numbers *numbers, Py_ssize_t first);

/* Returns the low 64 bits of an exact int. */
uint64_t low_word(PyObject *bits);

/* Reads an exact int; false if it is negative or beyond 64 bits. */
bool is_word(PyObject *bits, uint64_t *word);

typedef struct {
    PyObject *sequence;
    Py_buffer view; /* of an array of 64-bit numbers */
    bool buffered;
    Py_ssize_t length;
    PyObject *iterator; /* of next_key, where it is no array */
} KeySequence;

/* Begins to read any sequence of ints. False with an exception. */
bool open_keys(PyObject *sequence, KeySequence *keys);

void close_keys(KeySequence *keys);

/* Reads the key at a position; EMPTY for a number that is no key, which no table has. False with an exception. */
bool key_at(const KeySequence *keys, Py_ssize_t position, uint64_t *key);

/* Reads the next key, which is at this position. Returns false at the end, and with an exception. */
bool next_key(KeySequence *keys, Py_ssize_t position, uint64_t *key);

/* Reads a key that is looked up, as key_at does. */
bool read_wanted(PyObject *number, uint64_t *key);

#endif
