#include "bulk.h"

bool choose_seed(uint64_t *seed)
{
    PyObject *os = PyImport_ImportModule("os"); /* not the hash of a string: a simulation draws what os.urandom returns */
    PyObject *drawn = os == NULL ? NULL : PyObject_CallMethod(os, "urandom", "n", (Py_ssize_t)sizeof *seed);
    char *bytes = NULL;
    Py_ssize_t count = 0;
    bool chosen = drawn != NULL && PyBytes_AsStringAndSize(drawn, &bytes, &count) == 0;
    if (chosen) {
        memcpy(seed, bytes, sizeof *seed); /* as many as were wanted */
    }
    Py_XDECREF(drawn);
    Py_XDECREF(os);
    return chosen;
}

static PyObject *pack_low_words(PyObject *Py_UNUSED(module), PyObject *list)
{
    Numbers keys;
    if (!read_keys(list, &keys)) {
        return NULL;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, 4 * keys.count);
    for (Py_ssize_t at = 0; packed != NULL && at < keys.count; at++) {
        uint32_t low = (uint32_t)keys.all[at];
        memcpy(PyBytes_AS_STRING(packed) + 4 * at, &low, 4);
    }
    free_numbers(&keys);
    return packed;
}

static int add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return failed;
}

static int fill_module(PyObject *module)
{
    if (add_type(module, &key_table_spec) < 0 || add_type(module, &holder_table_spec) < 0) {
        return -1;
    }
    if (PyModule_AddIntConstant(module, "SHORT", SHORT) < 0 ||
        PyModule_AddIntConstant(module, "LEAST_CHAINED_BYTES", LEAST_CHAINED_BYTES) < 0 ||
        PyModule_AddIntConstant(module, "MOST_CHAINED_BYTES", MOST_CHAINED_BYTES) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "HOLDER_BYTES", 27); /* a slot where 60% are used */
}

static PyMethodDef functions[] = {
    {"chain_keys", (PyCFunction)(void (*)(void))chain_keys, METH_FASTCALL, NULL},
    {"fold_hashes", fold_hashes, METH_O, NULL},
    {"pack_low_words", pack_low_words, METH_O, NULL},
    {"unpack_ids", unpack_ids, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "router.kvcache.bulk",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_bulk(void)
{
    return PyModuleDef_Init(&module_definition);
}
