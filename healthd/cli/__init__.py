"""The command line: one module per verb; ``output`` alone prints and exits."""
