"""The scorer contract and the built-in scorers, filters and pickers. Standard library only; see docs/policies/."""

from scorers.build import prefer_source

prefer_source()
