"""Tools of the documentation: reference pages made from the code, diagrams, checks of the examples."""
