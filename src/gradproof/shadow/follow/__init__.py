"""Whole-tensor values: what a gradient is made of, at the cost of operators, whatever the width of the model."""
