"""`warmroute policy` and `warmroute experiment`: commands for a running router, over its admin API."""
