"""A client of a real Mooncake Store, run by the stack's Python: orders and answers are lines of JSON.

    {"do": "put", "keys": [...]}      a value of 1 MiB each          -> the return codes
    {"do": "exist", "keys": [...]}    over RPC, which renews leases  -> 1, 0 or a negative code each

Arguments: master's address, bytes of memory to bring into the pool. Ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys

from mooncake.store import MooncakeDistributedStore

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the library logs to standard output

store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 32 << 20, "tcp", "", sys.argv[1])
answers.write(json.dumps([code]) + "\n")
value = b"x" * (1 << 20)
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "put":
        codes = [store.put(key, value) for key in order["keys"]]
    else:
        codes = list(store.batch_is_exist(order["keys"]))
    answers.write(json.dumps(codes) + "\n")
store.close()
