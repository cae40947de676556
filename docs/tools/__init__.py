"""What makes and checks the documentation: reference pages from the code, diagrams, examples in pages."""
