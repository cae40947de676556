"""The cases by subject. The hundreds of a number are the subject."""
