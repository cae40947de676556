/* A hash table from 60-bit numbers to 64-bit values that never rehashes much at once.

   Extendible hashing: the first bits of a number's hash choose a segment by way of a directory, a segment is an open
   addressing table with linear probing. A segment is doubled, up to SEGMENT_SLOTS, and then split into two. So one
   insertion moves at most SEGMENT_SLOTS entries (30 us), and memory grows evenly: of the slots of a large table that
   grows 47% to 75% are used. */

#ifndef WARMROUTE_NUMBER_TABLE_H
#define WARMROUTE_NUMBER_TABLE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#define SHORT_BITS 60
#define SHORT ((UINT64_C(1) << SHORT_BITS) - 1)
#define EMPTY UINT64_MAX /* as a slot's number: the slot is free */

typedef struct {
    uint64_t number;
    uint64_t value;
} Slot;

typedef struct {
    Slot *slots; /* NULL while it has no entries */
    uint32_t capacity;
    uint32_t used;
    uint32_t depth; /* bits of the hash that all its entries share */
} Segment;

typedef struct {
    Segment **directory; /* 2 ** depth entries; NULL until the first insertion */
    uint32_t depth;
    uint64_t seed;
    size_t length;
    size_t bytes; /* allocated */
} NumberTable;

/* An unallocated table. `seed` keeps others from choosing numbers that collide. */
void number_table_init(NumberTable *table, uint64_t seed);

/* Frees everything but the values; the table is empty then. */
void number_table_free(NumberTable *table);

/* Returns the entry of `number`, NULL if there is none. Valid until the next insertion or removal. */
Slot *number_table_find(const NumberTable *table, uint64_t number);

/* Returns the entry of `number`, a new one with the value 0 if `*inserted` is set. NULL with MemoryError: nothing
   changed. */
Slot *number_table_insert(NumberTable *table, uint64_t number, bool *inserted);

/* Removes the entry of `number` and stores its value. Returns false if there is none. */
bool number_table_remove(NumberTable *table, uint64_t number, uint64_t *value);

/* Loads what a search for `number` reads first into the processor's cache. */
void number_table_prefetch(const NumberTable *table, uint64_t number);

/* Returns the segment at or after position `*at` of the directory and moves `*at` behind it; NULL at the end. */
Segment *number_table_next(const NumberTable *table, size_t *at);

typedef struct {
    size_t place; /* in the directory */
    uint32_t slot; /* all slots of the segment there from this one on are free */
    bool inside; /* false: a segment begins */
} PopCursor;

/* Removes one entry and stores it. Returns false when the table is empty. A sequence of calls begins with a cursor of
   zeros; nothing else may change the table in between. */
bool number_table_pop(NumberTable *table, PopCursor *cursor, Slot *popped);

#endif
