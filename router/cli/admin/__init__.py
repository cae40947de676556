"""The command line's part of a running router: `warmroute policy` and `warmroute experiment`, over the admin API."""
