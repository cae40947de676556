"""Decisions of the ledger, made again: by the policies that made them, and by others held against them."""
