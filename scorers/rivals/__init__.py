"""The rules of other routers and of papers, to compare with."""
