#include "number_table.h"

#define SEGMENT_SLOTS 4096
#define FIRST_SLOTS 8
#define SEGMENT_ENTRIES 256 /* at least, on average, for each entry that the directory gets */

static uint64_t hash_of(const NumberTable *table, uint64_t number)
{ /* the finalizer of MurmurHash3: all bits of the result depend on all bits of the number */
    uint64_t hash = number ^ table->seed;
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
    hash = (hash ^ (hash >> 33)) * UINT64_C(0xC4CEB9FE1A85EC53);
    return hash ^ (hash >> 33);
}

static size_t place_of(uint64_t hash, uint32_t depth)
{
    return depth ? (size_t)(hash >> (64 - depth)) : 0;
}

static uint32_t home_of(uint64_t hash, uint32_t capacity)
{ /* the last bits: the first ones are equal within a segment */
    return (uint32_t)(((hash & UINT32_MAX) * capacity) >> 32);
}

static Slot *new_slots(uint32_t capacity)
{
    Slot *slots = PyMem_New(Slot, capacity);
    if (slots != NULL) {
        memset(slots, 0xFF, capacity * sizeof(Slot));
    }
    return slots;
}

static Slot *free_slot(Slot *slots, uint32_t capacity, uint64_t hash)
{
    uint32_t at = home_of(hash, capacity);
    while (slots[at].number != EMPTY) {
        at = at + 1 == capacity ? 0 : at + 1;
    }
    return &slots[at];
}

void number_table_init(NumberTable *table, uint64_t seed)
{
    table->directory = NULL;
    table->depth = 0;
    table->seed = seed;
    table->length = table->bytes = 0;
}

Segment *number_table_next(const NumberTable *table, size_t *at)
{
    if (table->directory == NULL || *at >= (size_t)1 << table->depth) {
        return NULL;
    }
    Segment *segment = table->directory[*at];
    *at += (size_t)1 << (table->depth - segment->depth);
    return segment;
}

void number_table_free(NumberTable *table)
{
    size_t at = 0;
    Segment *segment;
    while ((segment = number_table_next(table, &at)) != NULL) {
        PyMem_Free(segment->slots);
        PyMem_Free(segment);
    }
    PyMem_Free(table->directory);
    number_table_init(table, table->seed);
}

/* Returns the slot of `number`, or the free one where it belongs. The segment has slots. */
static Slot *probe(const Segment *segment, uint64_t number, uint64_t hash)
{
    Slot *slots = segment->slots;
    uint32_t at = home_of(hash, segment->capacity);
    while (slots[at].number != number && slots[at].number != EMPTY) { /* ends: a quarter of the slots is free */
        at = at + 1 == segment->capacity ? 0 : at + 1;
    }
    return &slots[at];
}

static Slot *find_in(const Segment *segment, uint64_t number, uint64_t hash)
{
    Slot *slot = segment->used == 0 ? NULL : probe(segment, number, hash);
    return slot == NULL || slot->number == EMPTY ? NULL : slot;
}

Slot *number_table_find(const NumberTable *table, uint64_t number)
{
    if (table->length == 0) {
        return NULL;
    }
    uint64_t hash = hash_of(table, number);
    return find_in(table->directory[place_of(hash, table->depth)], number, hash);
}

void number_table_prefetch(const NumberTable *table, uint64_t number)
{
    if (table->length == 0) {
        return;
    }
    uint64_t hash = hash_of(table, number);
    const Segment *segment = table->directory[place_of(hash, table->depth)];
    if (segment->used != 0) {
        __builtin_prefetch(&segment->slots[home_of(hash, segment->capacity)]);
    }
}

static bool begin(NumberTable *table)
{
    Segment **directory = PyMem_New(Segment *, 1);
    Segment *segment = PyMem_Calloc(1, sizeof(Segment));
    if (directory == NULL || segment == NULL) {
        PyMem_Free(directory);
        PyMem_Free(segment);
        return false;
    }
    directory[0] = segment;
    table->directory = directory;
    table->bytes = sizeof(Segment) + sizeof(Segment *);
    return true;
}

/* Stores the entries of `segment` in `entries`, which has room for one more. */
static void collect(const Segment *segment, Slot *entries)
{ /* without a branch, which a processor would often mispredict */
    uint32_t count = 0;
    for (uint32_t at = 0; at < segment->capacity; at++) {
        entries[count] = segment->slots[at];
        count += entries[count].number != EMPTY;
    }
}

static bool resize(NumberTable *table, Segment *segment, uint32_t capacity)
{
    Slot *slots = new_slots(capacity), *entries = PyMem_New(Slot, (size_t)segment->used + 1);
    if (slots == NULL || entries == NULL) {
        PyMem_Free(slots);
        PyMem_Free(entries);
        return false;
    }
    collect(segment, entries);
    for (uint32_t at = 0; at < segment->used; at++) {
        *free_slot(slots, capacity, hash_of(table, entries[at].number)) = entries[at];
    }
    PyMem_Free(entries);
    PyMem_Free(segment->slots);
    table->bytes += ((size_t)capacity - segment->capacity) * sizeof(Slot); /* wraps around where it shrinks */
    segment->slots = slots;
    segment->capacity = capacity;
    return true;
}

static bool double_directory(NumberTable *table)
{
    size_t places = (size_t)1 << table->depth;
    Segment **directory = PyMem_New(Segment *, 2 * places);
    if (directory == NULL) {
        return false;
    }
    for (size_t at = 0; at < places; at++) {
        directory[2 * at] = directory[2 * at + 1] = table->directory[at];
    }
    PyMem_Free(table->directory);
    table->directory = directory;
    table->depth++;
    table->bytes += places * sizeof(Segment *);
    return true;
}

static uint32_t capacity_for(uint32_t used)
{
    return used + used / 3 * 2 + FIRST_SLOTS; /* 60% used */
}

static bool split(NumberTable *table, Segment *segment, uint64_t hash)
{
    uint32_t depth = segment->depth + 1, capacities[2], used[2] = {0, 0};
    Slot *entries = PyMem_New(Slot, (size_t)segment->used + 1);
    if (entries == NULL) {
        return false;
    }
    collect(segment, entries);
    for (uint32_t at = 0; at < segment->used; at++) {
        used[hash_of(table, entries[at].number) >> (64 - depth) & 1]++;
    }
    Slot *halves[2];
    for (int half = 0; half < 2; half++) {
        capacities[half] = capacity_for(used[half]);
        halves[half] = new_slots(capacities[half]);
    }
    Segment *other = PyMem_New(Segment, 1);
    if (halves[0] == NULL || halves[1] == NULL || other == NULL ||
        (segment->depth == table->depth && !double_directory(table))) {
        PyMem_Free(entries);
        PyMem_Free(halves[0]);
        PyMem_Free(halves[1]);
        PyMem_Free(other);
        return false;
    }
    for (uint32_t at = 0; at < segment->used; at++) {
        uint64_t its = hash_of(table, entries[at].number);
        int half = its >> (64 - depth) & 1;
        *free_slot(halves[half], capacities[half], its) = entries[at];
    }
    PyMem_Free(entries);
    table->bytes += ((size_t)capacities[0] + capacities[1] - segment->capacity) * sizeof(Slot) + sizeof(Segment);
    PyMem_Free(segment->slots);
    *segment = (Segment){halves[0], capacities[0], used[0], depth};
    *other = (Segment){halves[1], capacities[1], used[1], depth};
    size_t places = (size_t)1 << (table->depth - depth); /* of each half in the directory */
    size_t first = (place_of(hash, depth) | 1) * places;
    for (size_t at = first; at < first + places; at++) {
        table->directory[at] = other;
    }
    return true;
}

static bool make_room(NumberTable *table, Segment *segment, uint64_t hash)
{
    /* Numbers whose hashes begin alike could make the directory double without end. */
    bool may_split = segment->depth < table->depth ||
                     ((size_t)2 << table->depth) <= table->length / SEGMENT_ENTRIES;
    if (segment->capacity >= SEGMENT_SLOTS && may_split) {
        return split(table, segment, hash);
    }
    if (segment->capacity > UINT32_MAX / 2) {
        return false;
    }
    uint32_t capacity = 2 * segment->capacity;
    if (capacity < FIRST_SLOTS) {
        capacity = FIRST_SLOTS;
    }
    if (segment->capacity < SEGMENT_SLOTS && capacity > SEGMENT_SLOTS) {
        capacity = SEGMENT_SLOTS;
    }
    return resize(table, segment, capacity);
}

Slot *number_table_insert(NumberTable *table, uint64_t number, bool *inserted)
{
    *inserted = false;
    if (table->directory == NULL && !begin(table)) {
        PyErr_NoMemory();
        return NULL;
    }
    uint64_t hash = hash_of(table, number);
    Segment *segment = table->directory[place_of(hash, table->depth)];
    Slot *slot = segment->capacity == 0 ? NULL : probe(segment, number, hash);
    if (slot != NULL && slot->number == number) {
        return slot;
    }
    while ((uint64_t)(segment->used + 1) * 4 > (uint64_t)segment->capacity * 3) {
        if (!make_room(table, segment, hash)) {
            PyErr_NoMemory();
            return NULL;
        }
        segment = table->directory[place_of(hash, table->depth)];
        slot = probe(segment, number, hash);
    }
    *slot = (Slot){number, 0};
    segment->used++;
    table->length++;
    *inserted = true;
    return slot;
}

static void remove_from(NumberTable *table, Segment *segment, Slot *slot)
{
    uint32_t capacity = segment->capacity, hole = (uint32_t)(slot - segment->slots), at = hole;
    Slot *slots = segment->slots;
    for (;;) { /* move entries that probed past the hole back, so that searches need no marks of removed ones */
        at = at + 1 == capacity ? 0 : at + 1;
        if (slots[at].number == EMPTY) {
            break;
        }
        uint32_t home = home_of(hash_of(table, slots[at].number), capacity);
        uint32_t from_home = at >= home ? at - home : at + capacity - home;
        uint32_t from_hole = at >= hole ? at - hole : at + capacity - hole;
        if (from_home >= from_hole) {
            slots[hole] = slots[at];
            hole = at;
        }
    }
    slots[hole].number = EMPTY;
    table->length--;
    if (--segment->used == 0) {
        table->bytes -= capacity * sizeof(Slot);
        PyMem_Free(slots);
        segment->slots = NULL;
        segment->capacity = 0;
    }
}

bool number_table_remove(NumberTable *table, uint64_t number, uint64_t *value)
{
    if (table->length == 0) {
        return false;
    }
    uint64_t hash = hash_of(table, number);
    Segment *segment = table->directory[place_of(hash, table->depth)];
    Slot *slot = find_in(segment, number, hash);
    if (slot == NULL) {
        return false;
    }
    *value = slot->value;
    remove_from(table, segment, slot);
    return true;
}

bool number_table_pop(NumberTable *table, PopCursor *cursor, Slot *popped)
{
    size_t next = cursor->place;
    Segment *segment;
    while ((segment = number_table_next(table, &next)) != NULL) {
        if (!cursor->inside) {
            cursor->slot = segment->capacity;
            cursor->inside = true;
        }
        while (segment->used) {
            Slot *slot = &segment->slots[cursor->slot - 1];
            if (slot->number != EMPTY) { /* its removal may move an entry here, to no slot behind it */
                *popped = *slot;
                remove_from(table, segment, slot);
                return true;
            }
            cursor->slot--;
        }
        cursor->place = next;
        cursor->inside = false;
    }
    return false;
}
