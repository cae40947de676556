/* The types and functions of the module `router.kvcache.bulk`; bulk.py says what they do. */

#ifndef WARMROUTE_BULK_H
#define WARMROUTE_BULK_H

#include "numbers.h"

/* Different in each process that hashes strings differently. */
bool choose_seed(uint64_t *seed);

#define LEAST_CHAINED_BYTES 9 /* of the token ids of a block in chain_keys */
#define MOST_CHAINED_BYTES 232

PyObject *chain_keys(PyObject *module, PyObject *const *args, Py_ssize_t count);

PyObject *fold_hashes(PyObject *module, PyObject *list);

PyObject *unpack_ids(PyObject *module, PyObject *packed);

extern PyType_Spec key_table_spec;
extern PyType_Spec holder_table_spec;

#endif
