"""What the operator table is interpreted in: value, real, field, weight, rounding."""
